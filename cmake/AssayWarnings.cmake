# Warnings are errors, with gcc and with clang, unless ASSAY_WERROR is off (as it is inside another project).  Tests drop the conversion warnings: Criterion's macros do not compile with
# them.
set(ASSAY_C_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wvla -Wstrict-prototypes
    -Wmissing-prototypes -Wdouble-promotion -Wcast-qual -Wformat=2)
set(ASSAY_CXX_WARNINGS -Wall -Wextra -Wshadow)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Texts cut to the width of a field are meant to be cut; where it matters the result of snprintf is checked.
  list(APPEND ASSAY_C_WARNINGS -Wno-format-truncation)
  list(APPEND ASSAY_CXX_WARNINGS -Wno-format-truncation)
endif()
if(ASSAY_WERROR)
  list(APPEND ASSAY_C_WARNINGS -Werror)
  list(APPEND ASSAY_CXX_WARNINGS -Werror)
endif()
add_compile_definitions(_DEFAULT_SOURCE)

if(ASSAY_SANITIZE_ADDRESS)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Programs with both sanitizers have four thousand pages of addresses to relocate at every start, and the tests start them ten thousand times.
  add_link_options(-fsanitize=address,undefined -no-pie)
elseif(ASSAY_SANITIZE_THREAD)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()
if(ASSAY_FUZZ)
  # Instrumented, the loops of ref/fast do not vectorize; that is no warning here.
  add_compile_options(-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-pass-failed)
  add_link_options(-fsanitize=address,undefined)
endif()

function(assay_c_warnings target)
  foreach(w IN LISTS ASSAY_C_WARNINGS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:${w}>)
  endforeach()
  foreach(w IN LISTS ASSAY_CXX_WARNINGS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${w}>)
  endforeach()
endfunction()
