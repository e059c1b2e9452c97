"""A model with packed matrices decodes as before, is saved as before, and is packed only where that is faster."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import Transformer, Workspace, load_for_decoding, load_model
from leafbeam.ops.linear import onednn
from tests.fixtures.sessions import prompts

MakeModel = Callable[..., Transformer]

pytestmark = pytest.mark.skipif(not onednn.is_available(torch.float32), reason="this torch packs no matrices")


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix that can be packed is faster so."""
    monkeypatch.setattr(onednn, "is_faster", lambda weight_VD, threads: onednn.is_available(weight_VD.dtype))


def packed_names(model: Transformer) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.is_mkldnn}


@pytest.mark.usefixtures("packs")
def test_a_search_finds_the_same(make_model: MakeModel, generator: torch.Generator):
    model = make_model(num_hidden_layers=3)
    sizes = model.vocabulary.codebook_sizes
    codes_NL = torch.stack([torch.randint(0, size, (200,), generator=generator) for size in sizes], 1)
    search = BeamSearch(Trie.build(codes_NL.numpy(), sizes), num_beams=20)
    tokens_BT, lengths_B = prompts(model, generator)
    plain = search.run(model.start(tokens_BT, lengths_B).step_fn, len(lengths_B))
    workspace, seen = Workspace(rows=7), []
    joined = "k_proj", "v_proj"  # with q_proj
    assert packed_names(model.pack()) == {
        name for name, _ in model.named_parameters() if "_proj" in name and not any(other in name for other in joined)
    }
    for _ in range(2):
        packed = search.run(model.start(tokens_BT, lengths_B, workspace=workspace).step_fn, len(lengths_B))
        seen.append(workspace.growths)
        assert [ids.tolist() for ids in packed.item_ids] == [ids.tolist() for ids in plain.item_ids]
        torch.testing.assert_close(torch.from_numpy(packed.scores), torch.from_numpy(plain.scores), rtol=1e-4, atol=1e-4)
    assert seen[0] == seen[1]


def test_queries_keys_and_values_are_packed_alone_where_that_is_faster(
    make_model: MakeModel, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    model = make_model()
    plain, tokens_BT, lengths_B = deepcopy(model), *prompts(model, generator)
    joined = sum(
        len(weight)
        for name, weight in model.named_parameters()
        if name.endswith(("0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight", "0.self_attn.v_proj.weight"))
    )
    monkeypatch.setattr(onednn, "is_faster", lambda weight_VD, threads: len(weight_VD) != joined)
    assert packed_names(model.pack()) == {name for name, _ in model.named_parameters() if "_proj" in name}
    logits_BV = model.pack().start(tokens_BT, lengths_B).step_fn()
    torch.testing.assert_close(logits_BV, plain.start(tokens_BT, lengths_B).step_fn(), rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path)
    assert all(
        torch.equal(saved, weight) for saved, weight in zip(load_model(tmp_path).parameters(), plain.parameters(), strict=True)
    )


@pytest.mark.usefixtures("packs")
def test_texts_go_on_the_same(make_model: MakeModel):
    model = make_model()
    tokens_BT, texts = torch.arange(6)[None], [[3, 7], [5]]
    plain_RD = model.start_texts(tokens_BT, num_texts=2, max_tokens=4).hidden_after(texts).clone()
    packed_RD = model.pack().start_texts(tokens_BT, num_texts=2, max_tokens=4).hidden_after(texts)
    torch.testing.assert_close(packed_RD, plain_RD, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("packs")
def test_it_is_saved_and_packed_again(make_model: MakeModel, tmp_path: Path):
    model = make_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    model.pack().pack().store_bfloat16().save_pretrained(tmp_path)
    saved = load_model(tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in saved.named_parameters())
    assert isinstance(saved, Transformer)
    loaded = load_for_decoding(tmp_path)
    assert isinstance(loaded, Transformer)
    assert packed_names(loaded) == packed_names(model) != set()


@pytest.mark.usefixtures("packs")
def test_matrices_of_bfloat16_are_packed_for_their_own_products_alone(make_model: MakeModel, generator: torch.Generator):
    model = make_model().bfloat16().float().store_bfloat16()
    assert packed_names(model.pack()) == set()  # its products are of float32
    tokens_BT, lengths_B = prompts(model, generator)
    rounded = model.with_precision("bfloat16")
    again = make_model().bfloat16().float().pack().with_precision("bfloat16")
    if onednn.is_available(torch.bfloat16):
        assert packed_names(rounded) == packed_names(again) != set()
    assert {weight.dtype for name, weight in again.named_parameters() if "_proj" in name} == {torch.bfloat16}
    assert packed_names(model) == set()
    logits_BV = rounded.start(tokens_BT, lengths_B).step_fn()
    torch.testing.assert_close(logits_BV, model.start(tokens_BT, lengths_B).step_fn(), rtol=0, atol=0.5)


@pytest.mark.usefixtures("packs")
def test_a_packed_model_says_that_it_only_decodes(make_model: MakeModel):
    with pytest.raises(ArgumentError, match=r"packed, for decoding: read it with load_model"):
        make_model().pack()(torch.arange(6)[None])


def test_nothing_is_packed_that_is_small_or_not_decoded_on_a_cpu_in_float32(make_model: MakeModel):
    assert packed_names(make_model().pack()) == set()
    assert packed_names(make_model().bfloat16().pack()) == set()
    assert packed_names(make_model().double().pack()) == set()
