/* A simulator without the race checker: fences order everything, scopes are one. */
extern "C" {
void assay_sim_fence(int scope);
int assay_sim_scope(int scope);
extern const int assay_sim_race_checker_needs_gcc; /* assay_sim_device.h: this library does without */

const int assay_sim_race_checker_needs_gcc = 0;

void assay_sim_fence(int)
{
#if defined(__SANITIZE_THREAD__)
    /* gcc's thread sanitizer does not model fences: an addition to one word that all of them share orders the same. */
    static unsigned order = 0;
    __atomic_fetch_add(&order, 1u, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

int assay_sim_scope(int scope)
{
    return scope;
}
}
