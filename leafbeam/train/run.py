"""One training run: build the model, train it, save model, checkpoints and a summary.

Shapes: N items, L levels.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError, counted
from leafbeam.files import write_json
from leafbeam.index import Trie
from leafbeam.model import AnyModel, new_model
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import CodeVectors, SidTable, text_columns
from leafbeam.train.baselines import ScoreFn
from leafbeam.train.checkpoint import Checkpoint
from leafbeam.train.evaluation import Validation
from leafbeam.train.fusion import fit_memory
from leafbeam.train.interaction_log import InteractionLog
from leafbeam.train.item_join import rows_among
from leafbeam.train.parallel import DataParallel
from leafbeam.train.recipe import Recipe
from leafbeam.train.split import Split
from leafbeam.train.teacher import MemoryTeacher
from leafbeam.train.trainer import Progress, Trainer

_BASELINES_SHARE = 0.1  # of a budget in minutes


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainOptions:
    """The options of a training, beside its recipe.

    Args:
        progress: Called with the state of training.
        resume: If true, training continues from the checkpoint, also with a larger budget.
        device: The device of training.
        parallel: This one of several processes; rank 0 writes.
        baselines: Other methods by name, to compare with.
        on_baselines: Called at the start with Recall@10 of popularity and of `baselines` on the same users.
        memory: The item memory of the training part that teaches the model; None fits one, with the log's texts
            if they are taught.
        code_vectors: Those of `fit_sids`, at which the embeddings of the codes begin; None begins at random.
        reserved_s: The seconds that the caller needs, before or after, of a budget in minutes.
        clock: Returns seconds; it must be monotonic.
    """

    progress: Progress | None = None
    resume: bool = False
    device: torch.device | str = "cpu"
    parallel: DataParallel = field(default_factory=DataParallel)
    baselines: Mapping[str, ScoreFn] = field(default_factory=dict[str, ScoreFn])
    on_baselines: Callable[[Mapping[str, float]], None] | None = None
    memory: ItemMemory | None = None
    code_vectors: CodeVectors | None = None
    reserved_s: float = 0.0
    clock: Callable[[], float] = time.monotonic


def train(
    log: InteractionLog,
    split: Split,
    sids: SidTable,
    recipe: Recipe | None = None,
    directory: str | Path | None = None,
    options: TrainOptions | None = None,
) -> AnyModel:
    """Train a model on the training part of a split, and save it.

    It writes `directory/model` (which transformers and `load_model` can read), `directory/training.json`, and every minute and
    at the end `directory/checkpoint`. With `recipe.validations`, recall on the validation items of a sample of users selects
    the best weights, unless the last ones are as good up to noise. Test items are never read.

    A budget in minutes also pays for the baselines, which get a tenth of it (of one process: from then on validation has fewer
    users, at least 200), for preparations and the last validation, but updates and the validations between them get at least
    half of it.

    Args:
        log: The log.
        split: Its parts.
        sids: The SID of each item.
        recipe: The settings of training.
        directory: Where to write; None writes nothing.
        options: How the training runs.

    Raises:
        ItemIdError: If an item has no SID.
        CheckpointError: If the checkpoint is damaged or of another recipe.
        TrainingError: If training fails, such as by a loss that is not finite.
    """
    recipe, options = recipe or Recipe(), options or TrainOptions()
    parallel, clock = options.parallel, options.clock
    began = clock()
    vocabulary = recipe.vocabulary(sids.codebook_sizes)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = new_model(recipe.model_config(vocabulary), vocabulary, generator, device=options.device)
    if options.code_vectors is not None:
        embed_codes(model, options.code_vectors, seed=recipe.seed)
    codes_NL = codes_of_log(log, sids)
    validate, reserved_s = None, options.reserved_s
    if recipe.validations and len(split.valid_users()):
        validate = _validation(log, split, Trie.build(codes_NL, sids.codebook_sizes, log.item_ids), recipe, options)
        if options.on_baselines is not None:
            options.on_baselines(validate.recalls)
        reserved_s += validate.warm_up(model.eval(), clock)
    users = log.user_ids if recipe.num_users else None
    trainer = Trainer(model, split.train, codes_NL, recipe, validate=validate, parallel=parallel, user_ids=users, clock=clock)
    if recipe.teacher_weight:
        columns = text_columns(log.items) if recipe.teacher_texts else ()
        memory = options.memory or fit_memory(log, split.train, columns)
        targets, texts = recipe.teacher_items, recipe.teacher_texts
        trainer.teacher = MemoryTeacher(memory, split.train, num_targets=targets, texts=texts)
    checkpoint, writes = None if directory is None else Path(directory) / "checkpoint", parallel.rank == 0
    if checkpoint is not None and options.resume and Checkpoint.exists(checkpoint):
        trainer.resume(Checkpoint.load(checkpoint))
    elif checkpoint is not None and not options.resume and writes:
        Checkpoint.remove(checkpoint)  # a later resume must not continue the run that this one replaces
    trainer.shorten(parallel.max_seconds(reserved_s + clock() - began, model.device))  # the same on every process
    trainer.run(progress=options.progress, checkpoint=checkpoint)
    model = trainer.full_model()
    if directory is None:
        return model
    directory = Path(directory)
    if writes:
        model.save_pretrained(directory / "model")
        summary = {**asdict(trainer.state), "precision": "bf16" if trainer.bf16 else "fp32", "recipe": asdict(recipe)}
        summary["baselines"] = {} if validate is None else validate.recalls
        write_json(directory / "training.json", summary)
    return model


def _validation(log: InteractionLog, split: Split, trie: Trie, recipe: Recipe, options: TrainOptions) -> Validation:
    minutes = recipe.budget.minutes if options.parallel.size == 1 else None  # several processes validate the same users
    return Validation(
        trie,
        log,
        split,
        max_items=recipe.max_items,
        sample=recipe.validation_users,
        baselines=options.baselines,
        seconds=None if minutes is None else _BASELINES_SHARE * 60 * minutes,
        clock=options.clock,
    )


@torch.no_grad()
def embed_codes(model: AnyModel, code_vectors: CodeVectors, *, seed: int = 0) -> None:
    """Set the embedding and the head of the codes that have items, as large as random ones."""
    embeddings = code_vectors.embeddings(model.embedding.weight.shape[1], seed=seed)
    for level, vectors_VW in enumerate(embeddings):
        known_V = ~np.isnan(vectors_VW[:, 0])
        tokens_V = torch.from_numpy(model.vocabulary.level_tokens(level)[known_V])
        for weight in {id(w): w for w in (model.embedding.weight, model.head_weight)}.values():
            rows_VW = torch.from_numpy(vectors_VW[known_V]) * weight[tokens_V].std().clamp(min=1e-6).cpu()
            weight[tokens_V.to(weight.device)] = rows_VW.to(weight)


def codes_of_log(log: InteractionLog, sids: SidTable) -> NDArray[np.int64]:
    """Return the SIDs (N, L) of the log's items, in its order; raise ItemIdError if an item has none."""
    same_kind = sids.item_ids.dtype.kind == log.item_ids.dtype.kind
    rows_N = rows_among(log.item_ids, sids.item_ids) if same_kind else np.full(log.num_items, -1)
    if count := int((rows_N < 0).sum()):
        missing: np.generic = log.item_ids[int(np.argmin(rows_N))]
        items = f"{count:,} of the log's {counted(len(rows_N), 'item')} {'has' if count == 1 else 'have'}"
        lack = f"{items} no Semantic ID, the first is {missing.item()!r}"
        raise ItemIdError(f"{lack}: fit the SIDs on this log with `leafbeam fit-sids`")
    return sids.codes[rows_N]
