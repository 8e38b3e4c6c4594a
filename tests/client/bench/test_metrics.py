import http.server
import threading

import pytest

from specdec.client.bench import metrics
from specdec.client.bench.metrics import MetricsUnavailable, Scraper, parse
from specdec.client.bench.records import Work

TEXT = """\
# HELP specdec:num_steps_total Scheduler steps
# TYPE specdec:num_steps_total counter
specdec:num_steps_total{model="speculative"} 40
specdec:step_seconds_total{model="speculative"} 2.5
specdec:draft_seconds_total{model="speculative"} 0.25
specdec:verify_seconds_total{model="speculative"} 2
specdec:requests_finished_total{model="speculative"} 3
# TYPE specdec:time_to_first_token_seconds histogram
specdec:time_to_first_token_seconds_count{model="speculative"} 3
nv_inference_count{model="target"} 7
"""


def test_reads_our_counters_and_derives_orchestration():
    work = parse(TEXT)
    assert (work.num_steps, work.step_seconds, work.num_finished) == (40, 2.5, 3)
    assert work.orchestration_seconds == 0.25
    assert work.num_drafts == 0


def test_sums_over_labels():
    more = 'specdec:num_steps_total{model="other"} 2\n'
    assert parse(TEXT + more).num_steps == 42


def test_work_adds_and_subtracts_field_by_field():
    one = Work(num_steps=3, step_seconds=1.5, num_finished=1)
    two = Work(num_steps=5, step_seconds=2.0, num_finished=2)
    assert one + two == Work(num_steps=8, step_seconds=3.5, num_finished=3)
    assert two - one == Work(num_steps=2, step_seconds=0.5, num_finished=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [("nv_inference_count 7\n", "none of specdec:"), ("<html> <body>", "cannot be read")],
)
def test_another_servers_metrics_are_refused(text, message):
    with pytest.raises(MetricsUnavailable, match=message):
        parse(text)


def test_waits_until_the_request_is_published():
    texts = iter([TEXT, TEXT, TEXT.replace("} 3\n# T", "} 4\n# T")])
    scraper = Scraper(lambda: next(texts), poll_seconds=0)
    before = scraper.read()
    assert scraper.after(before, 1) == Work(num_finished=1)
    assert next(texts, None) is None


def test_gives_up_waiting_for_what_never_comes(monkeypatch):
    monkeypatch.setattr(metrics, "_PATIENCE_SECONDS", 0.05)
    scraper = Scraper(lambda: TEXT, poll_seconds=0.01)
    assert scraper.after(scraper.read(), 1) == Work()


class _Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(TEXT.encode())

    def log_message(self, *_):
        pass


def test_connects_to_a_server_past_any_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        assert metrics.connect(f"{url}/metrics").read().num_steps == 40
        with pytest.raises(MetricsUnavailable, match=r"no metrics at .*404"):
            metrics.connect(f"{url}/other")
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(MetricsUnavailable, match="no metrics at"):
        metrics.connect(f"{url}/metrics")
