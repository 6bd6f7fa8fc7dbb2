/* A simulator without the race checker: fences order everything, scopes are one. */
extern "C" {
void assay_sim_fence(int scope);
int assay_sim_scope(int scope);

void assay_sim_fence(int)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

int assay_sim_scope(int scope)
{
    return scope;
}
}
