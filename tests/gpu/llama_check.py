"""A Llama of transformers with random weights: greedy tokens in float32, decode speed in bfloat16.

Deterministic by set-up (float32, fixed seeds, deterministic algorithms), so that two native runs
give the same tokens and any other difference means something. Speed is that of a captured decode
step, replayed: no Python in what is timed. Prints one line of JSON; exit 77: no transformers here.

    llama_check.py [speed]      speed: only the second part. Its KV cache is 32 blocks of 128 MiB, and no
                                block of the weights is larger than 126 MiB
"""
import gc
import hashlib
import json
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # generate() would compile for a static cache
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
except ImportError as error:
    print(f"no transformers here: {error}", file=sys.stderr)
    sys.exit(77)

PROMPT = 64
TOKENS = 64


def build(dtype, layers, cache_length):
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=cache_length,
        bos_token_id=1, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False)
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.to("cuda").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.04)
            else:
                parameter.fill_(1)
    return model, config


def prompt(batch):
    generator = torch.Generator().manual_seed(12)
    return torch.randint(3, 32000, (batch, PROMPT), generator=generator).to("cuda")


def forward(model, ids, cache, first, length):
    """Logits of the last of these tokens, which stand at positions first, first + 1, ... The mask is
    given in full, so that nothing in the model has to ask the GPU for a number."""
    positions = torch.arange(first, first + ids.shape[1], device="cuda")
    mask = torch.arange(length, device="cuda")[None, :] <= positions[:, None]
    mask = mask[None, None].expand(ids.shape[0], 1, -1, -1)
    # Releases before 5.x need cache_position; later ones take it and do not look.
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions[None],
                past_key_values=cache, use_cache=True, cache_position=positions, logits_to_keep=1)
    return out.logits[:, -1]


def greedy_by_hand(model, config, ids, length, count):
    """The tokens, and the logits of the last one."""
    cache = StaticCache(config=config, max_cache_len=length)
    logits = forward(model, ids, cache, 0, length)
    tokens = [logits.argmax(-1, keepdim=True)]
    for step in range(count - 1):
        logits = forward(model, tokens[-1], cache, PROMPT + step, length)
        tokens.append(logits.argmax(-1, keepdim=True))
    return torch.cat(tokens, 1), logits


def greedy(model, config, ids, length):
    """generate(), or, where this transformers wants other arguments, the same loop by hand."""
    try:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
            do_sample=False, past_key_values=StaticCache(config=config, max_cache_len=length))
        return out[:, PROMPT:], "generate()"
    except Exception as error:
        print(f"generate() refused: {error}", file=sys.stderr)
        return greedy_by_hand(model, config, ids, length, TOKENS)[0], "a loop over forward()"


def tokens_float32(result):
    torch.use_deterministic_algorithms(True, warn_only=True)
    model, config = build(torch.float32, layers=4, cache_length=2048)
    tokens, how = greedy(model, config, prompt(8), 2048)
    result["tokens"] = hashlib.sha256(tokens.cpu().numpy().tobytes()).hexdigest()[:16]
    result["tokens by"] = how
    result["distinct"] = int(tokens.unique().numel())
    # Every bit of the logits, behind a cache of large blocks.
    _, logits = greedy_by_hand(model, config, prompt(8), 2048, 9)
    result["logits"] = hashlib.sha256(logits.cpu().numpy().tobytes()).hexdigest()[:16]
    torch.use_deterministic_algorithms(False)


def speed_bfloat16(result):
    batch, length = 16, 2048
    model, config = build(torch.bfloat16, layers=16, cache_length=length)
    cache = StaticCache(config=config, max_cache_len=length)
    ids = prompt(batch)
    token = forward(model, ids, cache, 0, length).argmax(-1, keepdim=True)

    # Always the same position: the work of a step does not depend on it, the cache is read whole.
    def step():
        return forward(model, token, cache, PROMPT, length)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    run, how = step, "eager steps"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run, how = graph.replay, "replay of a captured step"
    except RuntimeError as error:
        print(f"capture refused: {error}", file=sys.stderr)
        torch.cuda.synchronize()

    begun = torch.cuda.Event(enable_timing=True)
    ended = torch.cuda.Event(enable_timing=True)
    begun.record()
    run()
    ended.record()
    ended.synchronize()
    # Enough for a steady clock, and no more than some seconds where the cache is read over PCIe.
    repeats = 50 if begun.elapsed_time(ended) < 40 else 10
    for _ in range(repeats):  # clocks up, pages in device memory
        run()
    rates = []
    for _ in range(10):
        begun = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(repeats):
            run()
        ended.record()
        ended.synchronize()
        rates.append(round(batch * repeats * 1000 / begun.elapsed_time(ended), 1))
    result["rates"] = rates
    result["rates by"] = how


def main():
    result = {}
    with torch.no_grad():
        if sys.argv[1:] != ["speed"]:
            tokens_float32(result)
            gc.collect()
            torch.cuda.empty_cache()
        speed_bfloat16(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
