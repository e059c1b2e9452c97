"""The training loop: next-item prediction over Semantic IDs, with checkpoints and validation.

Shapes: N items, L levels, U users, B windows of a batch, T items of each, P predicted and Q taught items of each, V codes of a
level, R items of a soft target, M = L - 1 codes of a branch, D hidden, S tokens.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError, CheckpointError, CodesError, TrainingError, counted
from leafbeam.model import AnyModel, EncoderDecoder, Vocabulary, new_model
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.train.batches import Batches
from leafbeam.train.checkpoint import Checkpoint, TrainState, fingerprint
from leafbeam.train.histories import Histories
from leafbeam.train.losses import SampledLevel, full_loss, soft_loss
from leafbeam.train.parallel import DataParallel, full_tensor, shard_like
from leafbeam.train.prediction import Taught, predict
from leafbeam.train.recipe import Recipe
from leafbeam.train.teacher import Teacher


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStats:
    """The statistics after a step.

    `loss` is the running mean in nats per item, with label smoothing. `recall` is the last Recall@10, or None.
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

AVERAGE_POWER = 9
VALIDATION_SHARE = 0.05
"""The share of a budget in minutes that validations may take, except for the last one."""

VALIDATION_STEPS = 100
"""The fewest steps between validations: after fewer, recall says little."""


class Trainer:
    """A training of a model on histories, step by step, which can stop at any step and resume.

        for each step:
            loss = sum over levels of cross_entropy(head(hidden before the code, level), code), mean over the items
            clip the gradient, take an AdamW step at the schedule's learning rate
            average += (weights - average) * (1 - (1 - 1 / step) ** AVERAGE_POWER)

    The model that is validated, kept and returned is the average of the weights over about the last ninth of the steps, so that
    recall can be compared at any time, whatever the learning rate (Karras et al., 2024, section 3). The data and dropout of
    step s follow from (seed, s) alone, so a resumed run ends with the same weights, bit for bit.

    The `model` is changed in place, on its own device. `histories` hold rows of `codes_NL`. `validate` returns Recall@10 on
    validation items. `parallel` is this process of several. `user_ids` has one id per history, for a recipe with `num_users`.
    `clock` returns monotonic seconds.

    Attributes:
        teacher: Makes the soft targets, for `recipe.teacher_weight` of the loss, such as a `MemoryTeacher` of the histories;
            None, as it is at first, trains on the next items alone.

    Raises:
        CodesError: If SIDs do not fit the vocabulary or the histories.
        ArgumentError: If the users do not fit.
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
        last_item = int(histories.items_E.max(initial=-1))
        if last_item >= len(codes_NL):
            raise CodesError(
                f"the histories name item row {last_item:,}, but only {counted(len(codes_NL), 'item has', 'items have')} SIDs"
            )
        self.model, self.recipe, self.state = model, recipe, TrainState()
        self._whole_budget = recipe.budget
        self.recall: float | None = None
        self.bf16 = is_bf16_faster(model.device) if recipe.precision == "auto" else recipe.precision == "bf16"
        self._tokens_NL = torch.as_tensor(model.vocabulary.tokens(codes_NL), device=model.device)
        self._codes_NL = torch.as_tensor(codes_NL, device=model.device)
        self._users_U = _user_tokens(model, histories, recipe, user_ids)
        self.teacher: Teacher | None = None
        self._sampled = None
        *before, last = model.vocabulary.codebook_sizes
        if before and last > recipe.sampled_codes:
            self._sampled = SampledLevel(codes_NL, last, drawn=recipe.sampled_codes, device=model.device)
        self._data = fingerprint(histories, codes_NL, self._users_U)
        self._validate, self._parallel = validate, parallel or DataParallel()
        self._best: dict[str, Tensor] = {}
        self._validation_s = 0.0
        self._is_consistent = True
        self._clock, self._now = clock, clock()
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
        self._parallel.prepare(model)
        self._average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        matrices = [weight for weight in model.parameters() if weight.ndim > 1]
        norms = [weight for weight in model.parameters() if weight.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": norms, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)

    def __repr__(self) -> str:
        return f"Trainer({type(self.model).__name__}, step {self.state.step:,}, {self.share:.0%} of {self.recipe.budget})"

    @property
    def share(self) -> float:
        """Return the used share of the budget, from 0 to 1."""
        return self.recipe.budget.share(steps=self.state.step, epochs=self.epochs, seconds=self.state.seconds)

    @property
    def epochs(self) -> float:
        """Return the number of passes over the data so far."""
        return self.state.epoch + self.state.batch / len(self._epoch)

    @property
    def ended(self) -> bool:
        """Return whether the budget is used up."""
        return self.share >= 1

    def shorten(self, seconds: float) -> None:
        """Take the seconds of other work off a budget in minutes (see `Budget.less`)."""
        self.recipe = replace(self.recipe, budget=self.recipe.budget.less(seconds))

    def run(self, *, progress: Progress | None = None, checkpoint: str | Path | None = None, every_s: float = 60.0) -> None:
        """Train to the end of the budget; the model then holds the best averaged weights (or the last), in evaluation mode.

        Args:
            progress: Called with the statistics.
            checkpoint: A directory, which is written every `every_s` seconds, at the end, and on Ctrl-C (a sharded run then
                keeps the last one, because its processes stop at different steps). All processes pass it; rank 0 writes.
            every_s: The seconds between two checkpoints.

        Raises:
            TrainingError: If the loss is no longer finite.
        """
        self._now, saved = self._clock(), self.state.seconds
        try:
            while not self.ended:
                before = self.share
                stats = self.step()
                self._validate_if_due(before)
                if progress is not None:
                    progress(replace(stats, recall=self.recall))
                if checkpoint is not None and self.state.seconds - saved >= every_s:  # the same on every process
                    self._save(checkpoint)
                    saved = self.state.seconds
        except KeyboardInterrupt:
            # During an update, and in a sharded run, the last checkpoint stays.
            if checkpoint is not None and self._is_consistent and not self._parallel.shard:
                self._save(checkpoint)
            raise
        if checkpoint is not None and self.state.seconds > saved:  # a larger budget continues from here
            self._save(checkpoint)
        self.model.load_state_dict(self._best or self._average)
        self.model.eval()

    def step(self) -> TrainStats:
        """Update the weights once; raise TrainingError, without an update, if the loss or its gradient is not finite."""
        before, rate = self.state, self.recipe.learning_rate_at(self.share)
        items_BT, weight = self._parallel.local_rows(self._epoch[before.batch])
        items = torch.as_tensor(items_BT, dtype=torch.int64, device=self.model.device)
        users = None
        if self._users_U is not None:
            users_B, _ = self._parallel.local_rows(self._users_U[self._epoch.users(before.batch)])
            users = torch.as_tensor(users_B, device=self.model.device)
        with torch_threads(self.recipe.threads):  # the number of threads decides the last bits of a sum
            self._update(items, users, rate, weight)
        seconds, share = self.state.seconds, self.share
        return TrainStats(
            step=self.state.step,
            epochs=self.epochs,
            share=share,
            loss=self.state.loss,
            learning_rate=rate,
            items_per_second=items_BT.size / max(seconds - before.seconds, 1e-9),
            seconds=seconds,
            remaining_s=seconds * (1 - share) / max(share, 1e-9),
            recall=self.recall,
            bf16=self.bf16,
        )

    def loss(self, items_BT: Tensor, users_B: Tensor | None = None) -> Tensor:
        """Return the loss in nats per item: the summed cross-entropy over each level's codes, plus the router loss of experts.

        of the first level: (1 - w) next item's code, label-smoothed, + w soft targets' codes
        of a later level: (1 - w) next item's code after its codes before, + w that of an item that is drawn from the targets
            w = teacher_weight, 0 for a window's first item and where the teacher knows nothing

        A decoder runs the codes of the drawn item beside those of the next one (`Transformer.forward`). An encoder-decoder
        predicts one item of a window, and reads the codes of one of the two, drawn by their weights.
        """
        taught = self._taught(items_BT)
        drawn_BQL = None if taught is None else self._tokens_NL[taught.drawn_BQ]
        with self._autocast():
            found = predict(self.model, self._tokens_NL[items_BT], self._dropout, users_B, drawn_BQL)
        later_BPMD, items_BP = found.hidden_BPLD[:, :, 1:], items_BT[:, -found.hidden_BPLD.shape[1] :]
        log_p_BPV = self._log_p(found.hidden_BPLD[:, :, 0], 0)
        loss_BP = full_loss(log_p_BPV, self._codes_NL[items_BP, 0], label_smoothing=self.recipe.label_smoothing)
        if taught is None:
            return (loss_BP + self._later_loss(later_BPMD, items_BP)).mean() + found.router_loss
        num_taught = taught.drawn_BQ.shape[1]
        soft_BQ = soft_loss(log_p_BPV[:, -num_taught:], self._codes_NL[taught.items_BQR, 0], taught.weights_BQR)
        loss_BP = taught.mixed(loss_BP, soft_BQ)
        if found.drawn_BQMD is None:  # the codes that were read are those of the drawn items
            return (loss_BP + self._later_loss(later_BPMD, taught.drawn_BQ)).mean() + found.router_loss
        read_BX, hidden_BXMD = torch.cat((items_BP, taught.drawn_BQ), 1), torch.cat((later_BPMD, found.drawn_BQMD), 1)
        next_BP, later_BQ = self._later_loss(hidden_BXMD, read_BX).tensor_split((items_BP.shape[1],), 1)
        return (loss_BP + taught.mixed(next_BP, later_BQ)).mean() + found.router_loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def _log_p(self, hidden_BPD: Tensor, level: int) -> Tensor:
        """Return the log-probabilities (B, P, V) of a level's codes."""
        with self._autocast():
            return self.model.head(hidden_BPD, level).float().log_softmax(-1)

    def _later_loss(self, hidden_BPMD: Tensor, items_BP: Tensor) -> Tensor:
        """Return the summed loss (B, P) of all codes of some items but the first, from the hidden states before each."""
        loss_BP, last = torch.zeros(hidden_BPMD.shape[:2], device=items_BP.device), hidden_BPMD.shape[2]
        for level in range(1, last + 1):
            hidden_BPD = hidden_BPMD[:, :, level - 1]
            if level == last and self._sampled is not None:
                weight_VD = self.model.vocabulary.level_rows(self.model.head_weight, level)
                with self._autocast():
                    loss_P = self._sampled.loss(hidden_BPD.flatten(0, 1), weight_VD, items_BP.flatten(), self._dropout)
                loss_BP = loss_BP + loss_P.view_as(loss_BP)
            else:
                log_p_BPV, smoothing = self._log_p(hidden_BPD, level), self.recipe.label_smoothing
                loss_BP = loss_BP + full_loss(log_p_BPV, self._codes_NL[items_BP, level], label_smoothing=smoothing)
        return loss_BP

    def _taught(self, items_BT: Tensor) -> Taught | None:
        """Return what the teacher says of the predicted items that have one before them; None without a teacher or those."""
        if self.teacher is None or not self.recipe.teacher_weight or items_BT.shape[1] == 1:
            return None
        is_one = isinstance(self.model, EncoderDecoder)  # predicts the last item alone
        next_BQ = items_BT[:, -1 if is_one else 1 :]
        soft = self.teacher.targets(items_BT.cpu().numpy(), items_BT.shape[1] - next_BQ.shape[1])
        weights_BQR = torch.from_numpy(soft.weights_PR).to(items_BT.device).unflatten(0, next_BQ.shape)
        items_BQR = torch.from_numpy(soft.items_PR).to(items_BT.device, torch.int64).unflatten(0, next_BQ.shape)
        sums_BQR = weights_BQR.cumsum(-1)
        draws_BQ1 = sums_BQR[..., -1:] * torch.rand((*next_BQ.shape, 1), device=items_BT.device, generator=self._dropout)
        choice_BQ1 = (sums_BQR < draws_BQ1).sum(-1, keepdim=True)
        is_drawn_BQ = is_known_BQ = sums_BQR[..., -1] > 0
        share_BQ = self.recipe.teacher_weight * is_known_BQ
        if is_one:
            is_drawn_BQ = torch.rand(share_BQ.shape, device=share_BQ.device, generator=self._dropout) < share_BQ
        drawn_BQ = torch.where(is_drawn_BQ, items_BQR.gather(-1, choice_BQ1)[..., 0], next_BQ)
        return Taught(items_BQR=items_BQR, weights_BQR=weights_BQR, drawn_BQ=drawn_BQ, share_BQ=share_BQ)

    def checkpoint(self) -> Checkpoint:
        """Return a snapshot of the run (copies of the weights and of AdamW's moments); in a sharded run a collective call."""
        tensors = {f"best/{name}": full_tensor(weight) for name, weight in self._best.items()}
        tensors |= {f"average/{name}": full_tensor(weight).clone() for name, weight in self._average.items()}
        for name, weight in self.model.named_parameters():
            kinds = {"weights": weight.detach(), **self._optimizer.state.get(weight, {})}
            tensors |= {f"{kind}/{name}": full_tensor(tensor).clone() for kind, tensor in kinds.items()}
        return Checkpoint(
            state=self.state,
            bf16=self.bf16,
            tensors=tensors,
            recipe=replace(self.recipe, budget=self._whole_budget),
            vocabulary=self.model.vocabulary,
            data=self._data,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint, perhaps with a larger budget: the learning rate is then that of the new budget's share.

        Raises:
            CheckpointError: If it belongs to another recipe, vocabulary or log.
        """
        checkpoint.check(recipe=self.recipe, vocabulary=self.model.vocabulary, data=self._data)
        weights, best, average = (checkpoint.of(kind) for kind in ("weights", "best", "average"))
        named = dict(self.model.named_parameters())
        fitting = _shapes(named)
        moments = {"exp_avg": fitting, "exp_avg_sq": fitting, "step": dict.fromkeys(named, (torch.Size(), torch.float32))}
        shapes = {kind: _shapes(checkpoint.of(kind)) for kind in moments}
        if (
            any(_shapes(tensors) != fitting for tensors in (weights, average, best or average))
            or any(not shapes[kind].items() <= expected.items() for kind, expected in moments.items())
            or len({frozenset(names) for names in shapes.values()}) > 1
        ):
            raise CheckpointError("the checkpoint's tensors are not those of this model: train from the start")
        with torch.no_grad():
            for name, weight in named.items():
                weight.copy_(shard_like(weights[name], weight))
        for kind in moments:
            for name, value in checkpoint.of(kind).items():
                value = value.to(self.model.device) if kind == "step" else shard_like(value, named[name])
                self._optimizer.state[named[name]][kind] = value
        self._best = {name: shard_like(weight, named[name]) for name, weight in best.items()}
        self._average = {name: shard_like(weight, named[name]) for name, weight in average.items()}
        self.state, self.bf16 = checkpoint.state, checkpoint.bf16
        self.recall = self.state.best_recall if self.state.best_recall >= 0 else None
        self._epoch = self._batches.epoch(self.state.epoch)
        if self.state.batch >= len(self._epoch):
            at = f"batch {self.state.batch:,} of {len(self._epoch):,}"
            raise CheckpointError(f"the checkpoint is at {at}: train from the start")
        self._now = self._clock()

    def full_model(self) -> AnyModel:
        """Return the model with the best averaged weights (before the first validation the last), in evaluation mode.

        In a sharded run this is a collective call; the copy is not sharded.
        """
        return self._model_of(self._best or self._average)

    def _model_of(self, weights: dict[str, Tensor]) -> AnyModel:
        model = new_model(self.model.config, self.model.vocabulary, device="meta")
        model.load_state_dict({name: full_tensor(weight) for name, weight in weights.items()}, assign=True)
        return model.eval()

    def _save(self, directory: str | Path) -> None:
        checkpoint = self.checkpoint()
        if self._parallel.rank == 0:
            checkpoint.save(directory)

    def _update(self, items_BT: Tensor, users_B: Tensor | None, rate: float, weight: float) -> None:
        step = self.state.step
        rank = (self._parallel.rank,) if self._parallel.size > 1 else ()
        seed = np.random.SeedSequence([self.recipe.seed, step, *rank]).generate_state(1)
        self._dropout.manual_seed(int(seed[0]))
        self.model.train()
        loss = self.loss(items_BT, self._drop_users(users_B)) * weight
        self._optimizer.zero_grad()
        self._parallel.backward(loss)
        self._parallel.sum_gradients(self.model.parameters())
        loss = self._parallel.sum(loss)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm))
        if not bool(torch.isfinite(loss + norm)):
            raise TrainingError(
                f"at step {step:,} the loss is {loss.item():g} and the norm of its gradient {norm.item():g}: "
                f"lower learning_rate (it is {self.recipe.learning_rate:g}) or clip_norm (it is {self.recipe.clip_norm:g})"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._is_consistent = False
        self._optimizer.step()
        share = 1 - (1 - 1 / (step + 1)) ** AVERAGE_POWER
        for name, parameter in self.model.named_parameters():
            self._average[name].lerp_(parameter.detach(), share)
        self._advance(loss.item())
        self._is_consistent = True

    def _drop_users(self, users_B: Tensor | None) -> Tensor | None:
        """Return the user tokens, of which a share of `recipe.user_dropout` is replaced by the token of no user."""
        if users_B is None:
            return None
        drawn_B = torch.rand(users_B.shape, device=users_B.device, generator=self._dropout)
        assert isinstance(self.model.vocabulary, Vocabulary)
        return users_B.masked_fill(drawn_B < self.recipe.user_dropout, self.model.vocabulary.no_user)

    def _advance(self, loss: float) -> None:
        """Move the state to the next batch."""
        state, elapsed = self.state, self._parallel.max_seconds(self._clock() - self._now, self.model.device)
        batch, epoch = state.batch + 1, state.epoch
        if batch == len(self._epoch):
            batch, epoch = 0, epoch + 1
            self._epoch = self._batches.epoch(epoch)
        mean = loss if state.step == 0 else 0.98 * state.loss + 0.02 * loss
        seconds = state.seconds + elapsed
        self.state = replace(state, step=state.step + 1, epoch=epoch, batch=batch, seconds=seconds, loss=mean)
        self._now += elapsed

    def _validate_if_due(self, before: float) -> None:
        """Measure recall if the share of the budget passes a multiple of 1 / validations; `before` is the share a step ago."""
        count = self.recipe.validations
        if self._validate is None or int(self.share * count) == int(before * count):
            return
        affordable = self._validation_s <= VALIDATION_SHARE * self.state.seconds or self.recipe.budget.minutes is None
        if self.share < 1 and not (affordable and self.state.step - self.state.validated_step >= VALIDATION_STEPS):
            return
        start = self._clock()
        with torch_threads(self.recipe.threads):
            self.recall = self._validate(self._model_of(self._average))
        self._validation_s += self._parallel.max_seconds(self._clock() - start, self.model.device)
        self.state = replace(self.state, validated_step=self.state.step)
        noise = sqrt(max(self.recall * (1 - self.recall), 0) / self.recipe.validation_users) if self.share >= 1 else 0
        if self.recall >= self.state.best_recall - noise:
            self.state = replace(self.state, best_recall=self.recall, best_step=self.state.step)
            self._best = {name: weight.clone() for name, weight in self._average.items()}


def _user_tokens(
    model: AnyModel, histories: Histories, recipe: Recipe, user_ids: NDArray[np.int64] | NDArray[np.str_] | None
) -> NDArray[np.int64] | None:
    """Return the user token of each history, None without user tokens; raise ArgumentError if the arguments disagree."""
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
        raise ArgumentError(
            f"{len(user_ids):,} user_ids for {counted(len(histories), 'history', 'histories')}: one for each, in their order"
        )
    assert isinstance(vocabulary, Vocabulary)  # a TokenTable has no user tokens
    return vocabulary.user_tokens(user_ids)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def is_bf16_faster(device: torch.device) -> bool:
    """Return whether bf16 matrix products are at least 1.5 times as fast; measured on a CPU, because most emulate them."""
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for dtype in seconds:
        a, b = torch.ones(512, 128, dtype=dtype), torch.ones(128, 384, dtype=dtype)
        for _ in range(4):
            start = time.perf_counter()
            torch.mm(a, b)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    return 1.5 * seconds[torch.bfloat16] < seconds[torch.float32]
