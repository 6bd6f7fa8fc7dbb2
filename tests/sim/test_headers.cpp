/* Other people's sources include what they like, in any order, next to a CUDA toolkit. */
#include <cuda_runtime.h>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <complex>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iomanip>
#include <iostream>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "tests/support/sim.h"

#include <device_launch_parameters.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

/* --- words ------------------------------------------------------------------------------------------------------------- */

__device__ __noinline__ static int device_body()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return 1;
#else
    return 0; /* what a host compiler would take, in silence */
#endif
}

__global__ void bodies(int *out)
{
    const clock_t c = clock();
    const long long t = clock64();
    out[0] = device_body();
    out[1] = clock64() >= t && clock() >= c && __globaltimer() > 0;
    out[2] = *std::make_shared<int>(7);
}

Test(sim_headers, the_standard_library_compiles_behind_them_and_device_bodies_do_not_vanish)
{
    int *d = nullptr, h[3] = {0, 0, 0};
    cr_assert(cudaMalloc(&d, sizeof h) == cudaSuccess);
    cr_assert(assay_sim::launch("bodies", 0, bodies, dim3(1), dim3(1), 0, nullptr, d) == cudaSuccess);
    cr_assert(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    cr_expect(h[0] == 1 && h[1] == 1 && h[2] == 7);
}

/* --- what is not there ------------------------------------------------------------------------------------------------- */

static std::string compile(const std::string &header)
{
    const std::string include = std::string(ASSAY_SOURCE_DIR) + "/gpu/sim/include";
    const std::string command = "printf '#include <" + header +
                                ">\\n' | c++ -std=c++17 -DASSAY_SIM=1 -fsyntax-only -I " + include +
                                " -isystem /usr/local/cuda/include -x c++ - 2>&1";
    std::string out;
    char line[512];
    FILE *f = popen(command.c_str(), "r");
    while (f != nullptr && fgets(line, sizeof line, f) != nullptr)
        out += line;
    return f != nullptr && pclose(f) == 0 ? "" : out + " ";
}

Test(sim_headers, a_toolkit_on_the_include_path_is_not_mixed_in, .timeout = 300)
{
    static const char *const refused[] = {"cudla.h",         "cuda_awbarrier.h", "cublas.h",
                                          "curand_kernel.h", "cuda_fp6.h",       "texture_types.h",
                                          "cub/cub.cuh",     "cuda/latch",       "nccl_device.h"};
    static const char *const taken[] = {"builtin_types.h",
                                        "crt/host_defines.h",
                                        "device_functions.h",
                                        "math_functions.h",
                                        "cooperative_groups.h",
                                        "cooperative_groups/reduce.h",
                                        "cublas_v2.h",
                                        "cuda.h",
                                        "cuComplex.h",
                                        "math_constants.h",
                                        "cuda_profiler_api.h",
                                        "nvtx3/nvToolsExt.h",
                                        "cudaTypedefs.h",
                                        "nvrtc.h",
                                        "cudnn.h",
                                        "cuda_fp4.h"};
    for (const char *header : refused) {
        const std::string out = compile(header);
        cr_expect(out.find("not modelled by the simulator") != std::string::npos, "%s: %s", header,
                  out.c_str());
    }
    for (const char *header : taken)
        cr_expect(compile(header).empty(), "%s: %s", header, compile(header).c_str());
}

Test(sim_headers, functions_of_nccl_that_are_refused_say_their_name)
{
    quiet();
    ncclComm_t comm = nullptr, other = nullptr;
    ncclUniqueId id[2];
    ncclWindow_t window = nullptr;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    cr_assert(ncclGetUniqueId(&id[0]) == ncclSuccess && ncclGetUniqueId(&id[1]) == ncclSuccess);
    cr_assert(ncclCommInitRankScalable(&comm, 1, 0, 2, id, nullptr) == ncclSuccess);
    cr_expect(ncclCommShrink(comm, nullptr, 0, &other, nullptr, NCCL_SHRINK_DEFAULT) == ncclInvalidUsage);
    expect_report("ncclCommShrink", "not supported", "");
    cr_expect(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT) == ncclInvalidUsage);
    expect_report("ncclCommRevoke", "not supported", "");
    cr_expect(ncclCommWindowRegister(comm, nullptr, 0, &window, NCCL_WIN_DEFAULT) == ncclInvalidUsage);
    expect_report("ncclCommWindowRegister", "not supported", "");
    cr_expect(ncclCommWindowDeregister(comm, window) == ncclInvalidUsage);
    expect_report("ncclCommWindowDeregister", "not supported", "");
    cr_expect(ncclGroupSimulateEnd(&info) == ncclInvalidUsage);
    expect_report("ncclGroupSimulateEnd", "not supported", "");
    cr_expect(ncclCommDestroy(comm) == ncclSuccess);
}
