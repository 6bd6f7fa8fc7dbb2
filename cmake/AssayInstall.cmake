# The library that others link: assay_core with the trace and safetensors readers and writers.
#   #include "assay/core/files/trace.h"      find_package(assay) -> assay::core      pkg-config assay
# Inside this tree headers include each other as "core/base/status.h"; under include/assay they say
# "assay/core/base/status.h", so that nobody's include path gets a folder called core.
include(CMakePackageConfigHelpers)

set(ASSAY_PUBLIC_HEADERS
    core/base/arith.h core/base/dtype.h core/base/hash.h core/base/json.h core/base/status.h
    core/files/tensorfile.h core/files/tensorwriter.h core/files/trace.h
    core/model/shard.h)

set(ASSAY_PUBLIC_INCLUDE ${PROJECT_BINARY_DIR}/include)
foreach(header IN LISTS ASSAY_PUBLIC_HEADERS)
  file(READ ${header} text)
  string(REGEX MATCHALL "#include \"[^\"]*\"" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "#include \"(.*)\"" "\\1" included ${include})
    if(NOT included IN_LIST ASSAY_PUBLIC_HEADERS)
      message(FATAL_ERROR "${header} is installed and includes ${included}, which is not: see cmake/AssayInstall.cmake")
    endif()
  endforeach()
  string(REPLACE "#include \"core/" "#include \"assay/core/" text "${text}")
  file(CONFIGURE OUTPUT ${ASSAY_PUBLIC_INCLUDE}/assay/${header} CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endforeach()

add_library(assay::core ALIAS assay_core)
set_target_properties(assay_core PROPERTIES EXPORT_NAME core)
target_include_directories(assay_core INTERFACE $<BUILD_INTERFACE:${ASSAY_PUBLIC_INCLUDE}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Found again on the machine that links; cmake/assayConfig.cmake.in makes these targets.
target_link_libraries(assay_core PUBLIC $<INSTALL_INTERFACE:assay::jansson> $<INSTALL_INTERFACE:assay::sodium>
    $<INSTALL_INTERFACE:assay::utf8proc>)

set(ASSAY_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/assay)
configure_package_config_file(cmake/assayConfig.cmake.in ${PROJECT_BINARY_DIR}/assayConfig.cmake
    INSTALL_DESTINATION ${ASSAY_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/assayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# Relative to where the file lies, so that an installed tree may be moved.
file(RELATIVE_PATH ASSAY_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" ASSAY_PC_PREFIX "${ASSAY_PC_PREFIX}")
configure_file(cmake/assay.pc.in ${PROJECT_BINARY_DIR}/assay.pc @ONLY)

install(TARGETS assay_core EXPORT assayTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT assayTargets NAMESPACE assay:: DESTINATION ${ASSAY_PACKAGE_DIR})
install(DIRECTORY ${ASSAY_PUBLIC_INCLUDE}/assay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/assayConfig.cmake ${PROJECT_BINARY_DIR}/assayConfigVersion.cmake
    DESTINATION ${ASSAY_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/assay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
