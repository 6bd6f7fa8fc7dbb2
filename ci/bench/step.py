"""CPU seconds of one training step of a Hugging Face Llama in PyTorch, double, eager attention, one thread: forward, backward,
AdamW.  Arguments as those of ci/bench/bounds.c.  The least of five steps."""

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

layers, hidden, ffn, heads, groups, sequence, batch, vocabulary = map(int, sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(1)
config = LlamaConfig(
    num_hidden_layers=layers, hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads,
    num_key_value_heads=groups, vocab_size=vocabulary, max_position_embeddings=sequence, attn_implementation="eager",
    tie_word_embeddings=False,
)  # fmt: skip
model = LlamaForCausalLM(config).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, vocabulary, (batch, sequence))
best = float("inf")
for _ in range(6):
    start = time.process_time()
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    best = min(best, time.process_time() - start)
print(f"{best:.3f}")
