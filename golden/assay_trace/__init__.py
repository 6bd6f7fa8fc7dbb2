"""Records a PyTorch training run in assay's trace format (docs/TRACE.md of assay).

    import assay_trace
    trace = assay_trace.attach(model, "DIR", optimizer=optimizer)    # the optimizer may be left out
    for batch in batches:
        with trace.step():
            optimizer.zero_grad()
            model(**batch).loss.backward()                           # as many microbatches as you like
            optimizer.step()
    trace.close()

Then `assay replay --trace DIR` judges every operation that was recorded with one, `assay diff` compares two runs.
"""
from .tracer import Tracer, attach
from .writer import Writer, content_hash

__all__ = ["Tracer", "Writer", "attach", "content_hash"]
__version__ = "1.0.0"
