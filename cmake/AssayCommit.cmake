# The commit that the program `assay` tells in its reports: at every build, but written only when it changed.
#   cmake -DSOURCE=DIR -DOUT=FILE -P AssayCommit.cmake
set(commit "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --exclude=* --abbrev=12
                  OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE code)
  if(code EQUAL 0 AND found MATCHES "^[0-9a-f]+(-dirty)?$")
    set(commit "${found}")
  endif()
endif()
set(text "#define ASSAY_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUT} "${text}")
endif()
