"""The metrics endpoint on loopback answers only requests that call it by its own name."""

from __future__ import annotations

import http.client

import pytest

from tierlog.clock import ManualClock
from tierlog.metrics import RemoteLogMetrics
from tierlog.metrics.server import start_metrics_server


def status_for(host_header: str | None, listen: str = "127.0.0.1") -> int:
    with start_metrics_server(RemoteLogMetrics(ManualClock()), listen) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host_header is not None:
            connection.putheader("Host", host_header.replace("PORT", str(server.port)))
        connection.endheaders()
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status


@pytest.mark.parametrize("host", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST", "[::1]:1", None])
def test_its_own_names_are_answered(host: str | None) -> None:
    assert status_for(host) == 200


@pytest.mark.parametrize("host", ["evil.example:PORT", "localhost.evil.example", "", "[::1", "a b"])
def test_a_name_that_was_rebound_to_loopback_is_refused(host: str) -> None:
    assert status_for(host) == 421


def test_a_server_that_is_open_to_the_network_has_any_name() -> None:
    assert status_for("broker-0.kafka.svc:PORT", "0.0.0.0") == 200
