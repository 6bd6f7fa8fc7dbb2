/* A communicator as one rank sees it, and the work it puts on streams. */
#ifndef ASSAY_SIM_NCCL_COMM_HPP
#define ASSAY_SIM_NCCL_COMM_HPP

#include "nccl_redop.hpp"
#include "nccl_shm.hpp"

#include <mutex>
#include <utility>
#include <vector>

struct ncclComm;

namespace sim
{
/* The ranks, but for this one, that are in another communicator of this process, too: place here, place there. */
struct nccl_shared {
    ncclComm *other;
    std::vector<std::pair<int, int>> ranks;
};
} /* namespace sim */

struct ncclComm {
    sim::segment shm;
    int rank, ranks, device;
    uint64_t id;
    std::atomic<int> uses; /* the handle, and every piece of queued work */
    std::atomic<int> async_error;
    std::atomic<bool> aborted, finalized;
    std::atomic<uint64_t> works_issued,
        works_done;        /* a communicator's work runs in the order of issue, on any stream */
    uint64_t calls_issued; /* collectives */
    uint64_t splits;
    uint64_t order; /* ASSAY_SIM_NCCL_ORDER=rings: the same in every run, another in every communicator */
    uint64_t round; /* of the collectives' staging buffers */
    std::atomic<uint32_t> heard;          /* the bell when work was last stepped */
    std::vector<sim::nccl_shared> shared; /* nccl_order.cpp's */
};

namespace sim
{

/* One call, and how far it is. */
struct nccl_task {
    nccl_call call;
    const unsigned char *send;
    unsigned char *recv;
    size_t offset;  /* elements (collectives) or bytes (point to point) already moved */
    bool posted;    /* this round's data is offered */
    bool gathering; /* an all-reduce's second round for the chunk */
    bool started, finished;
    nccl_factor factor; /* of ncclRedOpCreatePreMulSum */
};

struct nccl_work {
    ncclComm *comm;
    uint64_t ticket;
    std::vector<nccl_task> collectives, messages;
    size_t current; /* collective */
    double since;   /* of the last progress; 0: not begun */
    double looked;  /* when the peers' processes were last checked */
    int look_from;  /* the next look goes on behind the last peer of this one */
};

/* Who waits looks whether its peers live: at all of a few, at some in turn of many, and the less often the more there are;
 * else hundreds of waiting processes take the processors from those that they wait for. */
constexpr int looked_at = 16;
inline double patience(int ranks)
{
    return ranks > looked_at ? static_cast<double>(ranks) / looked_at : 1.0;
}

/* One attempt of a collective, of all messages of a group: true when something moved.  Messages of one direction to one peer go in order,
 * everything else goes at once. */
bool nccl_collective_step(ncclComm *c, nccl_task &t);
bool nccl_messages_step(ncclComm *c, std::vector<nccl_task> &tasks);
/* What this rank is in, and that it is done, for the table of a failure. */
void nccl_note_running(ncclComm *c, const nccl_call &call);
void nccl_note_finished(ncclComm *c);
/* Tells the race checker what a finished call has read and written here, of its stream's work. */
void nccl_touch(const ncclComm *c, const nccl_task &t);

assay_sim_step nccl_work_step(void *state);
void nccl_work_wait(void *state);
void nccl_work_destroy(void *state);

/* Ends the communicator for all ranks; the first one to do so prints `text`. */
void nccl_fail(ncclComm *comm, ncclResult_t code, const std::string &text);
/* A failure of the communicator, its own or one that a peer set; ncclSuccess when there is none. */
ncclResult_t nccl_error(ncclComm *comm);
void nccl_release(ncclComm *comm);

/* The order of issue, which all ranks of two communicators must share (nccl_order.cpp).  A communicator enters when it has joined.
 * Collectives that are issued together; false: two communicators have failed, and it was said. */
void nccl_order_enter(ncclComm *comm);
void nccl_order_leave(ncclComm *comm);
bool nccl_order_agrees(ncclComm *comm, const std::vector<nccl_task> &tasks);
void nccl_remember(const std::string &text); /* for ncclGetLastError */

} /* namespace sim */

#endif
