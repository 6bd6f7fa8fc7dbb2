"""Which forwards of a step are microbatches of its training: those that a backward reached."""


class Microbatches:
    """Every forward has a number while its step runs; at the end those without a backward (evaluations, mostly under no_grad) become
    none (-1, and their tensors `evaluation.`), and the others move up.  Where no backward ran at all, all of them are microbatches."""

    def __init__(self, tracer):
        self.t, self.reached, self.running = tracer, set(), None

    def clear(self):
        self.reached, self.running = set(), None

    def backward(self, microbatch):
        """A gradient of an output of this forward has come."""
        self.reached.add(microbatch)
        self.running = microbatch

    def watch(self, out, microbatch):
        """The model's own outputs, whatever of it is recorded."""
        if isinstance(out, dict):
            out = tuple(out.values())
        if isinstance(out, (tuple, list)):
            for part in out:
                self.watch(part, microbatch)
        elif hasattr(out, "register_hook") and out.requires_grad:
            out.register_hook(lambda g: self.t.backward_reaches(microbatch))

    def settle(self, last):
        """last: the number of the last forward."""
        numbers, n = {}, self.t.first_microbatch
        for m in range(self.t.first_microbatch, last + 1):
            numbers[m] = n if m in self.reached else -1
            n += m in self.reached
        without = sum(new < 0 for new in numbers.values())
        if not self.reached or without == 0:
            return
        self.t.writer.renumber(numbers)
        self.t.note("a forward that no backward reached (an evaluation under no_grad, for example) is no microbatch: its operations are "
                    "judged, its tensors (evaluation.*) are not compared")
