# Device code of assay-sim for the CPU it runs on: gpu/ops is compiled twice, for any CPU and for those with AVX2 and FMA, into one
# program, and gpu/ladder.c takes one of the two sets of ladders.  Not with sanitizers or mutants, nor where lines are counted: one set is enough.
set(ASSAY_SIM_TARGETS 1)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT ASSAY_COVERAGE AND NOT ASSAY_MUTANTS AND NOT ASSAY_SANITIZE_ADDRESS
   AND NOT ASSAY_SANITIZE_THREAD AND CMAKE_OBJCOPY)
  execute_process(COMMAND ${CMAKE_LINKER} --help OUTPUT_VARIABLE help ERROR_QUIET)
  if(help MATCHES "--force-group-allocation")
    set(ASSAY_SIM_TARGETS 2)
  endif()
endif()

# The objects become one in which everything but the ladders is local.  A template's instance or an inline function of the C++
# library is in both sets under one name; the linker would keep either, and run AVX2 where there is none.
function(assay_device_code_for_avx2 library)
  set(one ${PROJECT_BINARY_DIR}/ops_avx2.o)
  add_library(assay_ops_avx2 OBJECT ${ARGN})
  target_link_libraries(assay_ops_avx2 PRIVATE assay_core assay_cudasim)
  target_compile_definitions(assay_ops_avx2 PRIVATE ASSAY_SIM=1 GPU_TARGET_AVX2)
  # Nothing is contracted: both sets give the same bits.  A unique symbol cannot be made local.
  target_compile_options(assay_ops_avx2 PRIVATE -O3 -mavx2 -mfma -ffp-contract=off -fno-math-errno
      -fno-trapping-math
      $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
  assay_c_warnings(assay_ops_avx2)
  add_custom_command(
    OUTPUT ${one}
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${one}.all $<TARGET_OBJECTS:assay_ops_avx2>
    COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=gpu_*_ladder_avx2 ${one}.all ${one}
    COMMAND ${CMAKE_COMMAND} -E rm ${one}.all
    DEPENDS $<TARGET_OBJECTS:assay_ops_avx2>
    COMMAND_EXPAND_LISTS VERBATIM
    COMMENT "Device code for AVX2 and FMA")
  set_source_files_properties(${one} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${library} PRIVATE ${one})
endfunction()
