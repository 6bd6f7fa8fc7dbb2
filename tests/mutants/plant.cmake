# ASSAY_MUTANTS=ON: the sources named by tests/mutants/*.mutant are compiled as tests/mutants/plant.awk writes them, every mutant
# a switch that ASSAY_MUTANT of the environment turns on.  One build holds them all.  It cannot be installed.
find_program(ASSAY_AWK awk REQUIRED)
file(GLOB ASSAY_MUTANT_FILES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/mutants/*.mutant)
set(planted_dir ${PROJECT_BINARY_DIR}/mutants)
set(ASSAY_MUTANT_SOURCES)
foreach(mutant IN LISTS ASSAY_MUTANT_FILES)
  file(STRINGS ${mutant} lines REGEX "^in ")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^in +" "" path "${line}")
    list(APPEND ASSAY_MUTANT_SOURCES ${path})
    list(APPEND "mutants_of_${path}" ${mutant})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES ASSAY_MUTANT_SOURCES)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ASSAY_MUTANT_FILES})
foreach(path IN LISTS ASSAY_MUTANT_SOURCES)
  get_filename_component(folder ${planted_dir}/${path} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${planted_dir}/${path}
    COMMAND ${ASSAY_AWK} -v source=${PROJECT_SOURCE_DIR}/${path} -v path=${path} -f ${PROJECT_SOURCE_DIR}/tests/mutants/plant.awk
            ${mutants_of_${path}} > ${planted_dir}/${path}.new
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${planted_dir}/${path}.new ${planted_dir}/${path} # a changed expectation compiles nothing
    DEPENDS ${PROJECT_SOURCE_DIR}/${path} ${mutants_of_${path}} ${PROJECT_SOURCE_DIR}/tests/mutants/plant.awk
    VERBATIM
    COMMENT "Mutants of ${path}")
endforeach()
# A planted header stands before its original for whoever includes it.
include_directories(BEFORE ${planted_dir})
add_compile_options(-include ${PROJECT_SOURCE_DIR}/tests/mutants/mutant.h -D_GNU_SOURCE)
install(CODE "message(FATAL_ERROR \"a build with mutants (ASSAY_MUTANTS) is not installed\")")

# The list of sources with planted files instead of their originals, headers among the sources.
function(assay_plant list)
  set(sources ${${list}})
  foreach(path IN LISTS ASSAY_MUTANT_SOURCES)
    list(FIND sources ${PROJECT_SOURCE_DIR}/${path} at)
    if(at GREATER_EQUAL 0)
      list(REMOVE_AT sources ${at})
      list(APPEND sources ${planted_dir}/${path})
    endif()
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()
# Headers are in no list: the libraries that include them wait for all of them.
set(ASSAY_MUTANT_HEADERS ${ASSAY_MUTANT_SOURCES})
list(FILTER ASSAY_MUTANT_HEADERS INCLUDE REGEX "\\.(h|cuh)$")
list(TRANSFORM ASSAY_MUTANT_HEADERS PREPEND ${planted_dir}/)
