"""vLLM's offline engine in a process of its own: one JSON job a line in, one JSON answer a line out. Runs in .venv-peers.

Started by `vllm_cpu`; imports nothing of this project but for jobs of the way "exact_beams". The argument is a JSON object:
directory, dtype, max_tokens, cache_gib, and those of `vllm_cpu.VllmSettings`.
"""

# pyright: basic, reportMissingImports=false
import json
import os
import sys
import time
from functools import cache
from pathlib import Path


def main(settings):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout too
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": str(settings["cache_gib"]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no second process between the loop and the engine
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm import LLM, SamplingParams, __version__
    from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

    limits = {"max_num_seqs": settings["sequences"], "max_num_batched_tokens": settings["batch_tokens"]}
    llm = LLM(
        settings["directory"],
        dtype=settings["dtype"],
        enforce_eager=not settings["compiled"],
        block_size=32,  # the smallest of its CPU attention: the least of a prompt is computed again for each beam
        max_logprobs=-1,
        logprobs_mode="processed_logprobs",  # of allowed tokens alone, or beams under a grammar lose most of them
        max_model_len=settings["max_tokens"],
        seed=0,  # a request with a seed of its own fails on a CPU
        disable_log_stats=True,
        structured_outputs_config={"backend": "xgrammar"},
        **{name: limit for name, limit in limits.items() if limit},
    )

    @cache
    def exact_search(index, vocabulary, num_beams):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from leafbeam import Trie
        from leafbeam.integrations.logprob_search import LogprobBeamSearch
        from leafbeam.integrations.vllm import VllmModel
        from leafbeam.model.vocabulary import TextTokens, vocabulary_from_dict

        tokens = vocabulary_from_dict(json.loads(vocabulary))
        assert not isinstance(tokens, TextTokens)
        return LogprobBeamSearch(Trie.load(index), VllmModel(llm), code_tokens=tokens, num_beams=num_beams)

    def tokens_of(search, codes):
        return [int(table.token_V[code]) for table, code in zip(search.tokens.levels, codes, strict=True)]

    def run(job):
        if job["way"] == "exact_beams":
            search = exact_search(job["index"], json.dumps(job["vocabulary"]), job["num_beams"])
            found = search.run(job["prompts"])
            rows = zip(found.codes.tolist(), found.num_valid, strict=True)
            return [[tokens_of(search, codes) for codes in codes_KL[:valid]] for codes_KL, valid in rows]
        prompts = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]
        if job["way"] == "text":
            params = SamplingParams(
                temperature=0.0,
                max_tokens=job["num_tokens"],
                detokenize=False,
                structured_outputs=StructuredOutputsParams(regex=job["regex"]),
            )
            return [[list(each.outputs[0].token_ids)] for each in llm.generate(prompts, params, use_tqdm=False)]
        grammar = job.get("grammar")
        options = {"structured_outputs": StructuredOutputsParams(grammar=grammar)} if grammar else {}
        options |= {"max_tokens": job["num_tokens"], "ignore_eos": True}
        if job["way"] == "beams":
            found = llm.beam_search(prompts, BeamSearchParams(beam_width=job["num_beams"], **options))
            return [
                [beam.tokens[len(tokens) :] for beam in one.sequences]
                for one, tokens in zip(found, job["prompts"], strict=True)
            ]
        allowed = job.get("allowed_tokens")
        options |= {"n": job["num_beams"], "temperature": job.get("temperature", 1.0)}
        params = SamplingParams(allowed_token_ids=allowed, detokenize=False, **options)
        return [[list(one.token_ids) for one in each.outputs] for each in llm.generate(prompts, params, use_tqdm=False)]

    print(json.dumps({"version": __version__}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            job = json.loads(line)
            llm.reset_prefix_cache()  # no way may find the prompts of another
            began = time.perf_counter()
            found = run(job)
            answer = {"seconds": time.perf_counter() - began, "sequences": found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
