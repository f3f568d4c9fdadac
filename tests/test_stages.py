"""Stages: their times add up to that of the job, whatever they contain."""

from __future__ import annotations

import time

import pytest

from secateur.stages import OTHER, profiled, stage


def test_a_stage_does_not_count_the_stages_inside_it() -> None:
    begin = time.perf_counter()
    with profiled() as profile:
        with stage("outer"):
            time.sleep(0.02)
            with stage("inner"):
                time.sleep(0.05)
            time.sleep(0.02)
        with stage("outer"):
            pass
    took = time.perf_counter() - begin
    assert [(row["stage"], row["calls"]) for row in profile.as_rows()][:2] == [("outer", 2), ("inner", 1)]
    assert profile.stages["inner"].seconds >= 0.05 and profile.stages["outer"].seconds >= 0.04
    assert profile.seconds == pytest.approx(took, abs=0.02)
    assert profile.stages["inner"].cpu_seconds < 0.04  # it slept
    assert profile.cpu_seconds == pytest.approx(sum(row["cpu_seconds"] for row in profile.as_rows()), abs=0.01)


def test_without_a_profile_a_stage_costs_nothing_and_an_error_closes_it() -> None:
    with stage("alone"):
        pass
    with profiled() as profile:
        with pytest.raises(ValueError), stage("broken"):
            raise ValueError
        with stage("next"):
            pass
    assert list(profile.stages) == [OTHER, "broken", "next"]


def test_a_job_inside_a_job_counts_for_both() -> None:
    with profiled() as outer:
        with profiled() as inner, stage("work"):
            pass
    assert inner is outer and "work" in outer.stages
