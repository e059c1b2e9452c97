"""The trainer: a log and Semantic IDs in, a model that predicts the next item's SID out.

Shapes: N items, L levels, V codes of a level, D hidden, B histories of a batch, T items of each.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError, CheckpointError, CodesError, ItemIdError, TrainingError
from leafbeam.index import Trie
from leafbeam.model import AnyModel, EncoderDecoder, Vocabulary, new_model
from leafbeam.semid import SidTable
from leafbeam.train.batches import Batches
from leafbeam.train.checkpoint import Checkpoint, Place, fingerprint
from leafbeam.train.data import Histories, InteractionLog
from leafbeam.train.evaluate import recall_on
from leafbeam.train.objective import predict
from leafbeam.train.parallel import DataParallel, like, whole
from leafbeam.train.recipe import Precision, Recipe
from leafbeam.train.split import Split
from leafbeam.train.threads import torch_threads

__all__ = ["Progress", "TrainStats", "Trainer", "bf16_pays", "codes_of_log", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStats:
    """How a run is doing, after each step.

    share: of the budget used up, 0 to 1. loss: running mean, nats an item (all levels), label smoothing included.
    remaining_s: seconds left, as it looks now. recall: Recall@10 on validation items when last measured, or None.
    """

    step: int
    epochs: float
    share: float
    loss: float
    learning_rate: float
    items_per_second: float
    seconds: float
    remaining_s: float
    recall: float | None
    bf16: bool


Progress = Callable[[TrainStats], None]


class Trainer:
    """Fits a model to histories, one batch after another, and can stop and go on anywhere.

    Think of a run as a fixed sequence of steps: which histories step s reads and what dropout takes away follow from
    (seed, s) alone, so a run that is resumed from a checkpoint ends with the same weights, bit for bit. Only a budget in
    minutes asks the clock, and is reproducible to no bit.

    for each step:
        loss = sum over levels of cross_entropy(head(hidden before the code, level), code), mean over the items
        clip the gradient, take an AdamW step at the schedule's learning rate

    model: changed in place, on its own device. histories: rows of `codes_NL`; hand over the training part of a split only.
    validate: measures Recall@10 of the model on validation items; called `recipe.validations` times, or until it has been no
    better `recipe.patience` times in a row, which ends the run. parallel: this process of several that train together.
    user_ids: one a history, for a recipe with `num_users`, whose model then sees the user's token before the history.
    clock: seconds that only grow; for tests.

    Raises CodesError for SIDs that do not fit the model's vocabulary or do not cover the histories' items, ArgumentError where
    recipe, vocabulary and user_ids do not agree on users.
    """

    def __init__(
        self,
        model: AnyModel,
        histories: Histories,
        codes_NL: NDArray[np.int64],
        recipe: Recipe,
        *,
        validate: Callable[[AnyModel], float] | None = None,
        parallel: DataParallel | None = None,
        user_ids: NDArray[np.int64] | NDArray[np.str_] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(histories.items_E) and int(histories.items_E.max()) >= len(codes_NL):
            raise CodesError(
                f"the histories name item row {histories.items_E.max():,}, but only {len(codes_NL):,} items have SIDs"
            )
        self.model = model
        self.recipe = recipe
        self.place = Place()
        self.recall: float | None = None
        self.bf16 = _bf16(recipe.precision, model.device)
        self._tokens_NL = torch.as_tensor(model.vocabulary.tokens(codes_NL), device=model.device)
        self._codes_NL = torch.as_tensor(codes_NL, device=model.device)
        self._users_U = _user_tokens(model, histories, recipe, user_ids)
        self._data = fingerprint(histories, codes_NL, self._users_U)
        self._validate = validate
        self._parallel = parallel
        self._best: dict[str, Tensor] = {}
        self._whole = True
        self._clock = clock
        self._now = clock()
        self._batches = Batches(
            histories=histories,
            max_items=recipe.max_items,
            num_levels=codes_NL.shape[1],
            batch_tokens=recipe.batch_tokens,
            seed=recipe.seed,
            last_only=isinstance(model, EncoderDecoder),
        )
        self._epoch = self._batches.epoch(0)
        self._dropout = torch.Generator(device=model.device)
        if parallel is not None:
            parallel.prepare(model)
        decayed = [weight for weight in model.parameters() if weight.ndim > 1]
        kept = [weight for weight in model.parameters() if weight.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": kept, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)

    @property
    def share(self) -> float:
        """How much of the budget is used up, from 0 to 1."""
        place = self.place
        epochs = place.epoch + place.batch / len(self._epoch)
        return self.recipe.budget.share(steps=place.step, epochs=epochs, seconds=place.seconds)

    @property
    def ended(self) -> bool:
        """Whether the budget is used up, or validation has stopped getting better."""
        return self.share >= 1 or 0 < self.recipe.patience <= self.place.worse

    def run(self, *, progress: Progress | None = None, checkpoint: str | Path | None = None, every_s: float = 60.0) -> None:
        """Train until the budget is used up; the model then holds the best (or the last) weights, in evaluation mode.

        checkpoint: a directory, written anew every `every_s` seconds and when Ctrl-C stops the run (a sharded run then keeps
        the last one: its processes stop at different places). Of several processes all name it, and the first one writes.
        Raises TrainingError when the loss is no longer a number.
        """
        self._now, saved = self._clock(), self.place.seconds
        try:
            while not self.ended:
                moment = self.step()
                self._validate_if_due()
                if progress is not None:
                    progress(replace(moment, recall=self.recall))
                if checkpoint is not None and self.place.seconds - saved >= every_s:  # the same on every process
                    self._save(checkpoint)
                    saved = self.place.seconds
        except KeyboardInterrupt:
            # Where weights and place do not agree, or others would have to help, the last minute's checkpoint stands.
            if checkpoint is not None and self._whole and not self._sharded:
                self._save(checkpoint)
            raise
        if self._best:
            self.model.load_state_dict(self._best)
        self.model.eval()

    def step(self) -> TrainStats:
        """One update of the weights; TrainingError, and no update, when the loss or its gradient is not a number."""
        place, share = self.place, self.share
        rate = self.recipe.learning_rate_at(share)
        items_BT, weight = self._epoch[place.batch], 1.0
        users_B = None if self._users_U is None else self._users_U[self._epoch.users(place.batch)]
        if self._parallel is not None:
            users_B = None if users_B is None else self._parallel.part(users_B)[0]
            items_BT, weight = self._parallel.part(items_BT)
        device = self.model.device
        items = torch.as_tensor(items_BT, dtype=torch.int64, device=device)
        users = None if users_B is None else torch.as_tensor(users_B, device=device)
        with torch_threads(self.recipe.threads):  # how many they are decides the last bits of a sum
            self._update(items, users, rate, weight)
        seconds, share = self.place.seconds, self.share
        return TrainStats(
            step=self.place.step,
            epochs=self.place.epoch + self.place.batch / len(self._epoch),
            share=share,
            loss=self.place.loss,
            learning_rate=rate,
            items_per_second=items_BT.size / max(seconds - place.seconds, 1e-9),
            seconds=seconds,
            remaining_s=seconds * (1 - share) / max(share, 1e-9),
            recall=self.recall,
            bf16=self.bf16,
        )

    def loss(self, items_BT: Tensor, users_B: Tensor | None = None) -> Tensor:
        """Nats an item: each level's cross-entropy over that level's codes alone, given everything before; then summed.

        users_B: the tokens of the windows' users. A model with experts adds its load-balancing loss.
        """
        tokens_BTL = self._tokens_NL[items_BT]
        with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            found = predict(self.model, tokens_BTL, self._dropout, users_B)
            logits_L = [self.model.head(found.hidden_BPLD[:, :, level], level) for level in range(tokens_BTL.shape[2])]
        codes_BTL = self._codes_NL[items_BT][:, -found.hidden_BPLD.shape[1] :]
        losses_L = [
            F.cross_entropy(
                logits.flatten(0, 1).float(),
                codes_BTL[:, :, level].flatten(),
                label_smoothing=self.recipe.label_smoothing,
            )
            for level, logits in enumerate(logits_L)
        ]
        return torch.stack(losses_L).sum() + found.penalty

    def checkpoint(self) -> Checkpoint:
        """This moment of the run (copies of the weights and of AdamW's moments); sharded, all processes make it together."""
        tensors = {f"weights/{name}": whole(weight.detach()).clone() for name, weight in self.model.named_parameters()}
        for name, weight in self.model.named_parameters():
            moments = self._optimizer.state.get(weight, {})
            tensors |= {f"{kind}/{name}": whole(moment).clone() for kind, moment in moments.items()}
        tensors |= {f"best/{name}": whole(weight) for name, weight in self._best.items()}
        return Checkpoint(
            place=self.place,
            recipe=self.recipe,
            vocabulary=self.model.vocabulary,
            data=self._data,
            bf16=self.bf16,
            tensors=tensors,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go to the moment of a checkpoint; CheckpointError where it belongs to another recipe, vocabulary or log."""
        checkpoint.check(recipe=self.recipe, vocabulary=self.model.vocabulary, data=self._data)
        weights, best = checkpoint.of("weights"), checkpoint.of("best")
        named = dict(self.model.named_parameters())
        if {name: x.shape for name, x in weights.items()} != {name: x.shape for name, x in named.items()}:
            raise CheckpointError("the checkpoint's weights are not those of this model: train from the start")
        with torch.no_grad():
            for name, weight in named.items():
                weight.copy_(like(weights[name], weight))
        for kind in ("exp_avg", "exp_avg_sq"):
            for name, moment in checkpoint.of(kind).items():
                self._optimizer.state[named[name]][kind] = like(moment, named[name])
        for name, steps in checkpoint.of("step").items():
            self._optimizer.state[named[name]]["step"] = steps.to(self.model.device)
        self._best = {name: like(weight, named[name]) for name, weight in best.items()}
        self.place, self.bf16 = checkpoint.place, checkpoint.bf16
        self.recall = self.place.best_recall if self.place.best_recall >= 0 else None
        self._epoch = self._batches.epoch(self.place.epoch)
        self._now = self._clock()

    def whole_model(self) -> AnyModel:
        """The model itself; for a sharded run one like it that is not, with the same weights, in evaluation mode.

        All processes have to ask for it together.
        """
        if not self._sharded:
            return self.model
        model = new_model(self.model.config, self.model.vocabulary, device=self.model.device)
        model.load_state_dict({name: whole(weight.detach()) for name, weight in self.model.named_parameters()})
        return model.eval()

    @property
    def _sharded(self) -> bool:
        return self._parallel is not None and self._parallel.shard

    def _save(self, directory: str | Path) -> None:
        checkpoint = self.checkpoint()
        if self._parallel is None or self._parallel.rank == 0:
            checkpoint.save(directory)

    def _update(self, items_BT: Tensor, users_B: Tensor | None, rate: float, weight: float) -> None:
        step = self.place.step
        rank = () if self._parallel is None else (self._parallel.rank,)
        seed = np.random.SeedSequence([self.recipe.seed, step, *rank]).generate_state(1)
        self._dropout.manual_seed(int(seed[0]))
        self.model.train()
        loss = self.loss(items_BT, self._without_some(users_B)) * weight
        self._optimizer.zero_grad()
        if self._parallel is None:
            loss.backward()
        else:
            self._parallel.backward(loss)
            self._parallel.sum_gradients(self.model.parameters())
            loss = self._parallel.sum_of(loss)
        norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm))
        if not bool(torch.isfinite(loss + norm)):
            raise TrainingError(
                f"at step {step:,} the loss is {loss.item():g} and the norm of its gradient {norm.item():g}: "
                f"lower learning_rate (it is {self.recipe.learning_rate:g}) or clip_norm (it is {self.recipe.clip_norm:g})"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._whole = False
        self._optimizer.step()
        self._advance(loss.item())
        self._whole = True

    def _without_some(self, users_B: Tensor | None) -> Tensor | None:
        """The users' tokens with `recipe.user_dropout` of them replaced by the one of no user."""
        if users_B is None:
            return None
        drawn_B = torch.rand(users_B.shape, device=users_B.device, generator=self._dropout)
        assert isinstance(self.model.vocabulary, Vocabulary)
        return users_B.masked_fill(drawn_B < self.recipe.user_dropout, self.model.vocabulary.no_user)

    def _advance(self, loss: float) -> None:
        """The next batch; the next epoch after the last one."""
        place, elapsed = self.place, self._clock() - self._now
        if self._parallel is not None:
            elapsed = self._parallel.latest(elapsed, self.model.device)
        batch, epoch = place.batch + 1, place.epoch
        if batch == len(self._epoch):
            batch, epoch = 0, epoch + 1
            self._epoch = self._batches.epoch(epoch)
        mean = loss if place.step == 0 else 0.98 * place.loss + 0.02 * loss
        seconds = place.seconds + elapsed
        self.place = replace(place, step=place.step + 1, epoch=epoch, batch=batch, seconds=seconds, loss=mean)
        self._now += elapsed

    def _validate_if_due(self) -> None:
        """Measure recall when the next of the evenly spaced places in the last half of the budget is reached."""
        count, number = self.recipe.validations, self.place.next_validation
        if self._validate is None or number >= count or self.share < 0.5 + 0.5 * (number + 1) / count:
            return
        self.model.eval()
        with torch_threads(self.recipe.threads):
            self.recall = self._validate(self.whole_model())
        self.place = replace(self.place, next_validation=number + 1, worse=self.place.worse + 1)
        if self.recall > self.place.best_recall:
            self.place = replace(self.place, best_recall=self.recall, best_share=self.share, worse=0)
            self._best = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}


def train(
    log: InteractionLog,
    split: Split,
    sids: SidTable,
    recipe: Recipe | None = None,
    directory: str | Path | None = None,
    *,
    progress: Progress | None = None,
    resume: bool = False,
    device: torch.device | str = "cpu",
    parallel: DataParallel | None = None,
) -> AnyModel:
    """Train a model on the training part of a split, and save it.

    Writes `directory/model` (readable by transformers and by `load_model`), `directory/training.json`, and once a minute
    `directory/checkpoint`, from which resume=True goes on (from the start where there is none).
    directory=None writes nothing. parallel: one of several processes (`DataParallel.join()`); the first one writes.
    What is held out is never trained on; with `recipe.validations`, recall on the
    validation items of a sample of users chooses among the weights of the run, and the test items are never read.

    Raises ItemIdError where an item of the log has no SID, CheckpointError where the checkpoint belongs to other SIDs,
    another log or another recipe, TrainingError when the loss stops being a number.
    """
    recipe = recipe or Recipe()
    vocabulary = recipe.vocabulary(sids.codebook_sizes)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = new_model(recipe.model_config(vocabulary), vocabulary, generator, device=device)
    codes_NL = codes_of_log(log, sids)
    validate = None
    if recipe.validations:
        trie = Trie.build(codes_NL, codebook_sizes=sids.codebook_sizes, item_ids=log.item_ids)
        validate = recall_on(trie, log, split, max_items=recipe.max_items, sample=recipe.validation_users)
    users = log.user_ids if recipe.num_users else None
    trainer = Trainer(model, split.train, codes_NL, recipe, validate=validate, parallel=parallel, user_ids=users)
    if directory is None:
        trainer.run(progress=progress)
        return trainer.whole_model()
    directory = Path(directory)
    saved = directory / "checkpoint"
    if not resume and (parallel is None or parallel.rank == 0):
        Checkpoint.remove(saved)  # else a later resume could go on with a run that this one replaces
    elif resume and Checkpoint.exists(saved):
        trainer.resume(Checkpoint.load(saved))
    writes = parallel is None or parallel.rank == 0
    trainer.run(progress=progress, checkpoint=saved)
    model = trainer.whole_model()
    if not writes:
        return model
    model.save_pretrained(directory / "model")
    summary = {**asdict(trainer.place), "precision": "bf16" if trainer.bf16 else "fp32", "recipe": asdict(recipe)}
    (directory / "training.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return model


def codes_of_log(log: InteractionLog, sids: SidTable) -> NDArray[np.int64]:
    """The SIDs (N, L) of the log's items, in its order. Raises ItemIdError where an item has none."""
    order = np.argsort(sids.item_ids)
    same_kind = sids.item_ids.dtype.kind == log.item_ids.dtype.kind
    place = np.searchsorted(sids.item_ids, log.item_ids, sorter=order) if same_kind and len(order) else np.zeros(0, np.int64)
    rows = order[np.minimum(place, len(order) - 1)] if len(place) else place
    known = sids.item_ids[rows] == log.item_ids if len(rows) == len(log.item_ids) else np.zeros(len(log.item_ids), np.bool_)
    if not known.all():
        missing: np.generic = log.item_ids[int(np.argmin(known))]
        raise ItemIdError(
            f"{int((~known).sum()):,} of the log's {len(known):,} items have no Semantic ID, the first is {missing.item()!r}: "
            "fit the SIDs on this log with `leafbeam fit-sids`"
        )
    return sids.codes[rows]


def _user_tokens(
    model: AnyModel, histories: Histories, recipe: Recipe, user_ids: NDArray[np.int64] | NDArray[np.str_] | None
) -> NDArray[np.int64] | None:
    """The token of each history's user, None for a recipe without; ArgumentError where not all say the same."""
    vocabulary = model.vocabulary
    if recipe.num_users != vocabulary.num_users:
        raise ArgumentError(
            f"the recipe has num_users={recipe.num_users:,}, the model's vocabulary {vocabulary.num_users:,}: "
            "make the model over recipe.vocabulary(codebook_sizes)"
        )
    if (user_ids is not None) != bool(recipe.num_users):
        raise ArgumentError(
            f"num_users={recipe.num_users:,} with{'' if user_ids is not None else 'out'} user_ids: give both or neither"
        )
    if user_ids is None:
        return None
    if len(user_ids) != len(histories):
        raise ArgumentError(f"{len(user_ids):,} user_ids for {len(histories):,} histories: one for each, in their order")
    assert isinstance(vocabulary, Vocabulary)  # the other kind has no user tokens
    return vocabulary.user_tokens(user_ids)


def bf16_pays(device: torch.device) -> bool:
    """Whether matrices of this size multiply faster in bf16 here: known of a GPU, measured on a CPU (a few milliseconds).

    Most CPUs emulate bf16: on AMD Zen 3 it is 10 to 15 times slower than fp32. "Faster" is by half or more.
    """
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for dtype in seconds:
        a, b = torch.ones(512, 128, dtype=dtype), torch.ones(128, 384, dtype=dtype)
        for _ in range(4):
            begun = time.perf_counter()
            torch.mm(a, b)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - begun)
    return 1.5 * seconds[torch.bfloat16] < seconds[torch.float32]


def _bf16(precision: Precision, device: torch.device) -> bool:
    return bf16_pays(device) if precision == "auto" else precision == "bf16"
