import numpy as np
import pytest

from benchmarks.studies.calibration import Temperature, calibration_error

pytestmark = pytest.mark.slow


def too_sure(users: int = 4000, items: int = 12, *, sureness: float = 2.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are `sureness` times as far apart as what really happens."""
    rng = np.random.default_rng(seed)
    true_UC = rng.normal(size=(users, items))
    p_UC = np.exp(true_UC) / np.exp(true_UC).sum(axis=1, keepdims=True)
    right_U = (rng.random((users, 1)) > p_UC.cumsum(axis=1)).sum(axis=1).clip(max=items - 1)
    return sureness * true_UC, right_U


def hits_of(scores_UC: np.ndarray, right_U: np.ndarray) -> np.ndarray:
    return (np.arange(scores_UC.shape[1]) == right_U[:, None]).ravel()


@pytest.mark.parametrize("sureness", [0.4, 1.0, 2.5])
def test_the_temperature_recovers_the_overconfidence(sureness: float):
    scores, right = too_sure(sureness=sureness)
    fitted = Temperature.fit(scores, right)
    assert fitted.temperature == pytest.approx(sureness, rel=0.1)
    new_scores, new_right = too_sure(sureness=sureness, seed=1)
    hits = hits_of(new_scores, new_right)
    before = calibration_error(Temperature(temperature=1.0).probabilities(new_scores).ravel(), hits)
    after = calibration_error(fitted.probabilities(new_scores).ravel(), hits)
    assert after < 0.012
    assert before > 2 * after or sureness == 1.0
    assert (fitted.probabilities(new_scores).argsort(axis=1) == new_scores.argsort(axis=1)).all()


def test_the_error_is_zero_for_calibrated_forecasts_and_the_gap_for_others():
    hits = np.array([True, False] * 50)
    assert calibration_error(np.full(100, 0.5), hits, bins=5) == pytest.approx(0.0)
    assert calibration_error(np.full(100, 0.9), hits, bins=5) == pytest.approx(0.4)
    assert calibration_error(hits.astype(float), hits) == 0.0
