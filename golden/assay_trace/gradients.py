"""Gradients of parameters as the last backward of a step left them: what clips, unscales or clears them comes later."""
import torch

from .names import clean


def averages(module):
    """DDP and FSDP put the gradient of all ranks in place of a rank's own when the backward ends."""
    names = {c.__name__ for c in type(module).__mro__}
    return bool(names & {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"})


class Gradients:
    """kept: id of a parameter -> (parameter, copy of its gradient, version of the gradient then).  A later accumulation of the step
    takes the place of an earlier one, so that a gradient which was cleared in between is that of the rest alone, as for the optimizer."""

    def __init__(self, tracer):
        self.t, self.kept, self.hooked, self.tasks = tracer, {}, set(), set()
        self.late = any(averages(m) for m in tracer.model.modules())
        self.backwards = self.stepped = False
        self.read = set()  # ids of the parameters whose gradient an optimizer has read

    def begin(self):
        """Hooks what is trained; parameters may thaw from step to step."""
        self.clear()
        for p in self.t.model.parameters():
            if p.requires_grad and p.is_leaf and id(p) not in self.hooked:
                self.hooked.add(id(p))
                self.t.handles.append(p.register_post_accumulate_grad_hook(self.accumulated))

    def clear(self):
        self.kept, self.backwards, self.stepped, self.read = {}, False, False, set()
        self.tasks.clear()

    def accumulated(self, p):
        if self.t.recording and not torch.compiler.is_compiling():
            self.in_backward()
            if not self.late:
                self.keep(p)

    def in_backward(self):
        """Called while a backward runs.  Where ranks are averaged at its end, what is there behind all others' callbacks counts."""
        task, self.backwards = torch._C._current_graph_task_id(), True
        if not self.late or task == -1 or task in self.tasks:
            return
        self.tasks.add(task)
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self.keep_all))

    def keep_all(self):
        if self.t.recording:
            for p in self.t.model.parameters():
                self.keep(p)

    def keep(self, p):
        name = self.t.names.get(id(p))
        if p.grad is None or name is None or not self.t.filter.takes(name):
            return
        if p.grad.layout != torch.strided:
            self.t.not_judged(name, "a sparse gradient")
            return
        with torch.no_grad():
            self.kept[id(p)] = (p, p.grad.detach().clone(), p.grad._version)

    # --- the end of a step --------------------------------------------------------------------------------------

    def record(self):
        """Of a parameter that no backward of this step reached, what it still has."""
        phase, n, changed, unread, without = "grad" if self.t.dp == 1 else "reduced_grad", 0, [], [], []
        for name, p in self.t.model.named_parameters():
            name = clean(name)
            _, g, version = self.kept.get(id(p), (p, p.grad, None))
            if g is None and self.t.filter.takes(name):
                without.append(name)
            if g is None or g.layout != torch.strided or not self.t.filter.takes(name):
                continue
            self.t.tensor(name + ".grad", g, phase, -1)
            n += 1
            followed = self.t.rules_optimizer is not None
            if followed and version is not None and id(p) not in self.read and self.changed(p, g, version):
                changed.append(name)
            if self.stepped and version is not None and id(p) not in self.read:
                unread.append(name)
        self.say(n, changed, unread)
        if self.backwards and n > 0 and without:
            self.many(without, "no gradient: frozen, or no part of the loss")

    def many(self, names, text):
        self.t.note(text, "not_judged", names[0] + (f" and {len(names) - 1} other parameters" if len(names) > 1 else ""))

    @staticmethod
    def changed(p, g, version):
        """Whether something else than zero was written over the gradient."""
        return (p.grad is not None and p.grad._version != version and p.grad.shape == g.shape and not torch.equal(p.grad, g)
                and bool((p.grad != 0).any()))

    def changed_of(self, parameters):
        """Names of those whose gradient is no more what the last backward left."""
        kept = [self.kept[id(p)] for p in parameters if id(p) in self.kept]
        return [self.t.names[id(p)] for p, g, version in kept if self.changed(p, g, version)]

    def say(self, n, changed, unread):
        if self.backwards and n == 0 and any(p.requires_grad for p in self.t.model.parameters()):
            self.t.incomplete("the run had backwards, and no gradient of a parameter was recorded")
        if unread:
            self.many(unread, "a gradient that no optimizer which stepped has read")
        elif changed:
            self.many(changed, "a gradient that was changed after the backward, and no optimizer was seen that reads it")
