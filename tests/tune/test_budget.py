"""Where the trials of a run go."""

from __future__ import annotations

from dataclasses import dataclass

from aotgen.tune.budget import MIN_TRIALS, TRIALS_PER_TASK, Budget


@dataclass
class Task:
    weight: float = 1.0
    value: float = 1.0
    trials: int = 0
    stale: int = 0
    exhausted: bool = False


def play(budget: Budget, tasks: list[Task], batch: int = 16) -> list[int]:
    """Run to the end; the tasks in the order in which they got a round."""
    order = []
    while (index := budget.next(tasks)) is not None:
        count = min(batch, budget.room(tasks, index))
        assert count > 0
        tasks[index].trials += count
        order.append(index)
    return order


def test_the_total_is_spent_and_every_task_gets_its_first_trials() -> None:
    tasks = [Task(value=v) for v in (0.001, 0.001, 5.0)]
    play(Budget(3, trials=100), tasks)
    assert sum(t.trials for t in tasks) == 100
    assert [t.trials for t in tasks] == [MIN_TRIALS, MIN_TRIALS, 100 - 2 * MIN_TRIALS]


def test_a_small_total_is_shared_and_the_heaviest_come_first() -> None:
    tasks = [Task(weight=w) for w in (1.0, 3.0, 2.0, 0.5)]
    assert play(Budget(4, trials=12), tasks) == [1, 2, 0, 3]
    assert [t.trials for t in tasks] == [3, 3, 3, 3]
    few = [Task(weight=w) for w in (1.0, 3.0, 2.0)]
    assert play(Budget(3, trials=2), few) == [1, 2]


def test_rounds_go_where_they_may_save_most() -> None:
    tasks = [Task(value=1.0), Task(value=2.0)]
    budget = Budget(2, trials=200)
    for task in tasks:
        task.trials = MIN_TRIALS
    assert budget.next(tasks) == 1
    tasks[1].value = 0.5
    assert budget.next(tasks) == 0


def test_caps_and_early_stopping_end_a_task_and_others_get_its_trials() -> None:
    tasks = [Task(value=9.0), Task(value=1.0)]
    play(Budget(2, trials=60, trials_per_task=40), tasks)
    assert [t.trials for t in tasks] == [40, 20]
    tired = [Task(value=9.0, stale=20, trials=30), Task(value=1.0, trials=30)]
    assert Budget(2, trials=100, early_stopping=20).next(tired) == 1
    tired[1].exhausted = True
    assert Budget(2, trials=100, early_stopping=20).next(tired) is None


def test_seconds_end_the_run() -> None:
    now = [100.0]
    budget = Budget(1, seconds=5.0, clock=lambda: now[0])
    tasks = [Task()]
    assert budget.next(tasks) == 0
    assert budget.seconds_left == 5.0
    now[0] = 105.0
    assert budget.next(tasks) is None


def test_without_a_total_every_task_counts_alike() -> None:
    assert Budget(5).total == 5 * TRIALS_PER_TASK
    assert Budget(5, trials_per_task=10).total == 50
