"""A service that fails is left alone for longer and longer, up to a bound."""

from __future__ import annotations

from services.prefill.circuit import Circuit


def _circuit() -> Circuit:
    return Circuit(pause_min_s=1.0, pause_max_s=4.0)


def test_calls_pass_while_they_succeed() -> None:
    circuit = _circuit()
    for now in range(3):
        assert circuit.admits(now)
        circuit.succeeded()


def test_a_failure_pauses_and_one_call_probes() -> None:
    circuit = _circuit()
    assert circuit.admits(0.0)
    circuit.failed(0.0)
    assert not circuit.admits(0.9)
    assert circuit.admits(1.0)
    assert not circuit.admits(1.1)  # the probe is under way
    circuit.succeeded()
    assert circuit.admits(1.2)
    assert circuit.admits(1.2)


def test_the_pause_doubles_up_to_its_bound() -> None:
    circuit = _circuit()
    now = 0.0
    for pause in (1.0, 2.0, 4.0, 4.0):
        assert circuit.admits(now)
        circuit.failed(now)
        assert not circuit.admits(now + pause - 0.1)
        now += pause
    assert circuit.admits(now)


def test_calls_that_fail_together_are_one_failure() -> None:
    circuit = _circuit()
    assert all(circuit.admits(0.0) for _ in range(8))
    for _ in range(8):
        circuit.failed(0.0)
    assert not circuit.admits(0.9)
    assert circuit.admits(1.0)
