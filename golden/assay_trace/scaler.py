"""What a GradScaler multiplies losses by, where it does it."""
import torch


class Scaler:
    """Recorded as `grad_scaler.scale`, once for a step; a scaler that scales by a method of its own (FSDP1's) is seen, too."""

    def __init__(self, tracer):
        self.t, self.step, self.scale = tracer, None, None
        kinds = [torch.amp.GradScaler]
        if torch.distributed.is_available():
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
            kinds.append(ShardedGradScaler)
        for kind in kinds:
            for word, make in (("scale", self.scaling), ("unscale_", self.unscaling)):
                if word in vars(kind):
                    self.patch(kind, word, make(getattr(kind, word)))

    def patch(self, kind, word, own):
        plain = getattr(kind, word)
        setattr(kind, word, own)
        self.t.undo.append(lambda: setattr(kind, word, plain) if getattr(kind, word) is own else None)

    def scaling(self, plain):
        def scale(scaler, outputs):
            scaled = plain(scaler, outputs)
            if self.t.inside() and scaler.is_enabled():
                self.see(scaler.get_scale())
            return scaled

        return scale

    def unscaling(self, plain):
        def unscale_(scaler, optimizer):
            if self.t.inside() and scaler.is_enabled():
                self.before_unscaling(optimizer)
            return plain(scaler, optimizer)

        return unscale_

    def before_unscaling(self, optimizer):
        """A norm that is clipped to a size while the scale is in it is another; what is read later does not show that."""
        changed = self.t.parameters.changed_of([p for group in optimizer.param_groups for p in group["params"]])
        if changed:
            self.t.incomplete(f"gradients of {len(changed)} parameters were changed before the GradScaler's unscale_ (clipped with its "
                              f"factor in them?), the first {changed[0]}")

    def see(self, scale):
        if self.step != self.t.step_number:
            self.step, self.scale = self.t.step_number, scale
            self.t.state("grad_scaler.scale", torch.tensor(scale, dtype=torch.float32))
            self.t.note("a GradScaler multiplied losses (grad_scaler.scale): gradients are compared without its factor")
        elif scale != self.scale:
            self.t.incomplete(f"losses of step {self.step} were multiplied by {scale:g} and by {self.scale:g} (GradScaler)")
