/* A watchdog for a thread that spins: a loop that waits for another thread of the block, or for another block, without a
 * barrier never ends here, because threads switch only where they wait.  A thread of the process looks twice a second
 * whether the kernels that run have come to another CUDA thread; one that has not for ASSAY_SIM_SPIN_S seconds gets a
 * signal, whose handler reports the place and abandons the launch. */
#include "simt.hpp"

#include <mutex>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <thread>
#include <time.h>

namespace sim
{

#if !SIM_ASAN && !SIM_TSAN

struct watched {
    worker *w; /* nullptr: free */
    pthread_t thread;
    const volatile uint3 *thread_id, *block_id;
    uint64_t launch;
    /* what the watchdog has last seen */
    uint3 seen_thread, seen_block;
    uint64_t seen_launch, seen_turns;
    double since;
};

static std::mutex lock;
static watched list[256];
static uint64_t launches;
static bool running;

static int spin_signal()
{
    return SIGRTMIN + 9;
}

static bool same(const uint3 &a, const uint3 &b)
{
    return a.x == b.x && a.y == b.y && a.z == b.z;
}

static uint3 read_id(const volatile uint3 *v)
{
    return uint3{v->x, v->y, v->z};
}

static void spin_handler(int, siginfo_t *, void *context)
{
    worker *w = self;
    if (w == nullptr || !w->spinning)
        return;  /* the kernel has ended meanwhile */
    if (w->hurt) /* it waits for a thread that has ended, which has been said */
        abandon(*w, w->hurt_by);
    char place[512];
    source_place(program_counter(context), place, sizeof place);
    assay_sim_report("spinning thread",
                     WHERE "it has run for %.0f s without a barrier or its end (ASSAY_SIM_SPIN_S), now in %s",
                     WHERE_ARGS(*w, threadIdx, w->looping ? 0 : w->fibers[w->current].line), config().spin_s,
                     place);
    abandon(*w, cudaErrorLaunchTimeout);
}

static void look(double now)
{
    for (watched &v : list) {
        if (v.w == nullptr)
            continue;
        const uint3 t = read_id(v.thread_id), b = read_id(v.block_id);
        const uint64_t turns = __atomic_load_n(&v.w->turns, __ATOMIC_RELAXED);
        if (v.w->waiting || v.seen_launch != v.launch || turns != v.seen_turns || !same(t, v.seen_thread) ||
            !same(b, v.seen_block)) {
            v.seen_launch = v.launch;
            v.seen_turns = turns;
            v.seen_thread = t;
            v.seen_block = b;
            v.since = now;
        } else if (config().spin_s > 0 && now - v.since > config().spin_s) {
            v.since = now;
            v.w->spinning = true;
            pthread_kill(v.thread, spin_signal());
        }
    }
}

static void watch()
{
    for (;;) {
        const struct timespec pause = {0, 500 * 1000 * 1000};
        nanosleep(&pause, nullptr);
        std::lock_guard<std::mutex> hold(lock);
        look(now_seconds());
    }
}

static void start()
{
    struct sigaction act = {};
    act.sa_sigaction = spin_handler;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigaction(spin_signal(), &act, nullptr);
    static bool forks;
    if (!forks) { /* a child has no watchdog and starts its own */
        forks = true;
        pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); },
                       [] {
                           running = false;
                           memset(static_cast<void *>(list), 0, sizeof list);
                           lock.unlock();
                       });
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(watch).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    running = true;
}

void watch_begin(worker &w)
{
    std::lock_guard<std::mutex> hold(lock);
    if (!running)
        start();
    w.spinning = false;
    w.watched = -1;
    for (int i = 0; i < 256; ++i) {
        if (list[i].w == nullptr) {
            list[i].w = &w;
            list[i].thread = pthread_self();
            list[i].thread_id = &threadIdx;
            list[i].block_id = &blockIdx;
            list[i].launch = ++launches;
            w.watched = i;
            return;
        }
    }
}

void watch_end(worker &w)
{
    std::lock_guard<std::mutex> hold(lock);
    if (w.watched >= 0)
        list[w.watched].w = nullptr;
    w.spinning = false;
}

#else

void watch_begin(worker &)
{
}

void watch_end(worker &)
{
}

#endif

} /* namespace sim */
