# What the built program prints of itself, to be installed: manual page and completion.
find_program(ASSAY_GZIP gzip REQUIRED)
set(ASSAY_MANUAL ${PROJECT_BINARY_DIR}/manual)
file(MAKE_DIRECTORY ${ASSAY_MANUAL})
set(pages assay.1)
set(ASSAY_ENGINES assay-sim)
if(ASSAY_CUDA_FOUND)
  list(APPEND ASSAY_ENGINES assay-gpu)
endif()
set(commands
    COMMAND assay help --man > assay.1
    COMMAND assay completion bash > assay)
foreach(engine IN LISTS ASSAY_ENGINES) # their page is the program's that starts them
  file(WRITE ${ASSAY_MANUAL}/${engine}.1 ".so man1/assay.1\n")
  list(APPEND pages ${engine}.1)
endforeach()
configure_file(gpu/sim/translate/assay-cc.1.in ${ASSAY_MANUAL}/assay-cc.1 @ONLY)
list(APPEND pages assay-cc.1)
list(TRANSFORM pages APPEND .gz OUTPUT_VARIABLE zipped)
list(TRANSFORM zipped PREPEND ${ASSAY_MANUAL}/)
add_custom_command(
  OUTPUT ${zipped} ${ASSAY_MANUAL}/assay
  ${commands}
  COMMAND ${ASSAY_GZIP} -9nkf ${pages}
  DEPENDS assay
  WORKING_DIRECTORY ${ASSAY_MANUAL}
  COMMENT "Manual page and completion")
add_custom_target(assay_manual ALL DEPENDS ${zipped} ${ASSAY_MANUAL}/assay)
install(FILES ${zipped} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${ASSAY_MANUAL}/assay DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
