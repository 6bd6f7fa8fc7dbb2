# A Debian package: `cpack --config build/release/CPackConfig.cmake`.  Dependencies are those of the programs' libraries, found by
# dpkg-shlibdeps; CUDA's, which come from no package, are not among them.
set(ASSAY_MAINTAINER "The authors of assay <authors@assay.invalid>" CACHE STRING "Maintainer of the Debian package")
find_program(ASSAY_GZIP gzip REQUIRED)
set(ASSAY_DEBIAN ${PROJECT_BINARY_DIR}/debian)
file(MAKE_DIRECTORY ${ASSAY_DEBIAN})
file(WRITE ${ASSAY_DEBIAN}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: assay

Files: *
Copyright: 2026 the authors of assay
License: Apache-2.0
 On Debian systems the full text of the Apache License, Version 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
")
configure_file(CHANGELOG.md ${ASSAY_DEBIAN}/changelog COPYONLY)
execute_process(COMMAND date -Rud ${ASSAY_DATE} OUTPUT_VARIABLE day OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(WRITE ${ASSAY_DEBIAN}/changelog.Debian "assay (${PROJECT_VERSION}-1) unstable; urgency=medium

  * What CPack makes of version ${PROJECT_VERSION}.

 -- ${ASSAY_MAINTAINER}  ${day}
")
execute_process(COMMAND ${ASSAY_GZIP} -9nkf changelog changelog.Debian WORKING_DIRECTORY ${ASSAY_DEBIAN} COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME assay)
set(CPACK_PACKAGE_VENDOR "assay")
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${ASSAY_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libjansson-dev, libsodium-dev, libutf8proc-dev, bash-completion")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_THREADS 0) # as many as there are processors
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "judge of two implementations of one LLM training stack")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "A reference on the CPU in double precision and an engine in C and
CUDA C train the same dense or mixture-of-experts transformer in any
parallel layout; a judge says whether they agree on loss, gradients,
routing, optimizer states and checkpoints, and where and how if they do
not. The engine runs in a simulator where there is no GPU. Recorded runs
of PyTorch models are judged, too.")
include(CPack)
