"""Runs vLLM's offline engine in .venv-peers, with this checkout on the path, and prints one JSON object for `test_vllm`.

The argument is the directory of a checkpoint.
"""

# pyright: basic, reportMissingImports=false
import json
import os
import sys

import numpy as np


def main(directory):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout too
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCHDYNAMO_DISABLE": "1",  # it would compile a kernel that counts ranks, for half a minute
    }
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError

    llm = LLM(
        directory,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_logprobs=-1,
        max_model_len=128,
        disable_log_stats=True,
        logits_processors=["tests.integrations.vllm_items:Items"],
    )
    # After the engine: it looks through all modules there are, and fails on some of numba's.
    from leafbeam.errors import InferenceError
    from leafbeam.integrations.logprob_search import LogprobBeamSearch
    from leafbeam.integrations.logprobs import TokenQuery
    from leafbeam.integrations.vllm import VllmModel
    from tests.integrations.tiny import WORDS, Shop
    from tests.integrations.vllm_items import items

    with open(f"{directory}/prompts.json") as file:
        prompts = json.load(file)
    model = VllmModel(llm)
    out = {}

    for kind in ("trie", "version"):
        for scoring in ("vocabulary", "full", "allowed"):
            shop = Shop(kind)
            search = LogprobBeamSearch(shop.index, model, code_tokens=shop.tokens, num_beams=12, scoring=scoring)
            found = search.run(prompts, filters=[shop.filter(0.3), None, shop.filter(0.02)], deny=[[1, 2], None, [9]])
            out[f"{kind}/{scoring}"] = {
                "item_ids": [ids.tolist() for ids in found.item_ids],
                "scores": [scores[:valid].tolist() for scores, valid in zip(found.scores, found.num_valid, strict=True)],
            }

    sliced = VllmModel(llm)
    sliced.returns_all = False
    queries = [TokenQuery(prefix=prompt, tokens_C=np.arange(WORDS)) for prompt in prompts]
    queries.insert(1, TokenQuery(prefix=prompts[0], tokens_C=np.array([5, 3])))
    out["sliced"], out["mixed"] = ([np.asarray(answer).tolist() for answer in one.logprobs(queries)] for one in (sliced, model))
    wide = [np.asarray(answer).tolist() for answer in model.logprobs([queries[0], *queries[2:]])]
    out["whole"] = [wide[0], out["mixed"][1], *wide[1:]]
    refused = [TokenQuery(prefix=prefix, tokens_C=np.array([5])) for prefix in ([1] * 128, [1, WORDS], prompts[1])]
    out["refused"] = [
        str(answer) if isinstance(answer, InferenceError) else answer.tolist() for answer in model.logprobs(refused)
    ]

    requests = [
        {"leafbeam_rules": []},
        {"leafbeam_rules": ["third"], "leafbeam_deny": [0, 3]},
        {"leafbeam_rules": ["third", "few"]},
        {"leafbeam_deny": [1]},
        None,
    ]
    served = items()
    out["samples"] = []
    for temperature, n in ((1.0, 16), (0.0, 1)):
        params = [
            SamplingParams(
                n=n, temperature=temperature, seed=0, max_tokens=3, extra_args=one, detokenize=False, ignore_eos=not one
            )
            for one in requests
        ]
        texts = llm.generate([{"prompt_token_ids": prompts[0]}] * len(requests), params, use_tqdm=False)
        out["samples"].append(
            [
                [[list(one.token_ids), served.item_ids(list(one.token_ids), request).tolist()] for one in text.outputs]
                for text, request in zip(texts, requests, strict=True)
            ]
        )
    for name, extra in (
        ("rule", {"leafbeam_rules": ["nope"]}),
        ("argument", {"leafbeam_rule": []}),
        ("type", {"leafbeam_deny": 3}),
    ):
        try:
            llm.generate([{"prompt_token_ids": prompts[0]}], SamplingParams(extra_args=extra), use_tqdm=False)
        except VLLMValidationError as error:
            out[name] = str(error)
    nothing = {"leafbeam_rules": ["few"], "leafbeam_deny": [9, 12, 200]}
    (text,) = llm.generate([{"prompt_token_ids": prompts[0]}], SamplingParams(extra_args=nothing), use_tqdm=False)
    out["nothing"] = list(text.outputs[0].token_ids)
    print(json.dumps(out), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
