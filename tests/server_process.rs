//! What belongs to the process and not to one server: its metrics recorder, its limit of file descriptors. A program of
//! its own, whose tests take turns.

#[path = "server/support/mod.rs"]
mod support;

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use support::{Command, Setup, ids};
use tokio::net::TcpStream;

static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Value of a metric's line in the page.
fn value(page: &str, line: &str) -> f64 {
    let found = page.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {line} in\n{page}"))
}

#[tokio::test]
async fn requests_are_counted_by_outcome_and_tokens_are_timed() {
    let _turn = TURN.lock().await;
    // B92 (aborted: 1 on leaving, 0 on normal ends), B93 (queue depth), reliability row 56.
    let server = Setup { max_running: 1, ..Setup::flags(&["--max-waiting", "2"]) }.start(|_| ids("abc")).await;
    let client = server.client;
    let page = client.get("/metrics").await;
    // What the other test left.
    let before = page.text();
    let since =
        |page: &str, line: &str| value(page, line) - if before.contains(line) { value(&before, line) } else { 0.0 };
    let total = |page: &str, outcome: &str| since(page, &format!("gemma4_requests_total{{outcome=\"{outcome}\"}}"));
    assert!(page.header("content-type").unwrap().starts_with("text/plain"));
    assert_eq!(value(&page.text(), "gemma4_requests_aborted_total"), 0.0);
    assert_eq!(value(&page.text(), "gemma4_build_info{version=\"0.1.0\",model=\"m\"}"), 1.0);

    assert_eq!(client.complete(json!({"prompt": ["x", "y"]})).await.status, 200); // two stops
    assert_eq!(client.complete(json!({"prompt": "x", "max_tokens": 2})).await.status, 200); // one length
    assert_eq!(client.complete(json!({"prompt": "x", "stop": "b"})).await.status, 200); // a stop string
    assert_eq!(client.complete(json!({"prompt": "x", "best_of": 2})).await.status, 400); // refused
    let mut stream = client.open(json!({"prompt": "x", "stream": true})).await;
    assert_eq!(stream.rest().await.last().map(String::as_str), Some("[DONE]"));
    server.until_quiet().await;

    let page = client.get("/metrics").await.text();
    for (outcome, n) in [("stop", 4.0), ("length", 1.0), ("aborted", 0.0), ("failed", 0.0), ("refused", 1.0)] {
        assert_eq!(total(&page, outcome), n, "{outcome}\n{page}");
    }
    assert_eq!(since(&page, "gemma4_time_to_first_token_seconds_count"), 5.0);
    assert_eq!(since(&page, "gemma4_generated_tokens_total"), 4.0 + 4.0 + 2.0 + 2.0 + 4.0);
    // Tokens that arrive together have no time between them, so there may be no sample at all.
    let inter = |line: &str| if page.contains(line) { value(&page, line) } else { 0.0 };
    assert_eq!(inter("gemma4_inter_token_seconds_bucket{le=\"+Inf\"}"), inter("gemma4_inter_token_seconds_count"));

    server.engine.send(Command::Step(0));
    let mut waiting = Vec::new();
    for n in 1..=3 {
        waiting.push(tokio::spawn(async move { client.complete(json!({"prompt": "x"})).await }));
        server.until("it has its place", || server.engine.running() + server.app.engine.waiting() == n).await;
    }
    assert_eq!(client.complete(json!({"prompt": "x"})).await.status, 503);
    assert_eq!(value(&client.get("/metrics").await.text(), "gemma4_requests_waiting"), 2.0);
    waiting.iter().for_each(|w| w.abort());
    server.until_quiet().await;
    let page = client.get("/metrics").await.text();
    assert_eq!((total(&page, "aborted"), value(&page, "gemma4_requests_aborted_total")), (3.0, 3.0));
    assert_eq!((total(&page, "refused"), value(&page, "gemma4_requests_waiting")), (2.0, 0.0));

    // A failure of one prompt fails its siblings; none of them is called aborted.
    let failing = tokio::spawn(async move { client.complete(json!({"prompt": ["x", "y"]})).await });
    server.until("one runs, one waits", || server.engine.running() == 1 && server.app.engine.waiting() == 1).await;
    server.engine.send(Command::Fail(gemma4_serve::request::Failure::NotANumber { output_index: 0 }));
    assert_eq!(failing.await.unwrap().status, 500);
    server.until_quiet().await;
    let page = client.get("/metrics").await.text();
    assert_eq!((total(&page, "aborted"), total(&page, "failed")), (3.0, 2.0));
    server.until("connections end", || server.app.in_flight() == 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(value(&client.get("/metrics").await.text(), "gemma4_connections_open") < 5.0);
}

#[tokio::test]
async fn accept_pauses_when_descriptors_run_out_and_recovers() {
    let _turn = TURN.lock().await;
    let server = Setup::flags(&["--header-timeout", "60"]).start(|_| ids("abc")).await;
    let limit = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 60), maximum: limit.maximum }).unwrap();
    // Both ends are in this process, so either side may meet the limit first; in the end neither has one left.
    let mut sockets = Vec::new();
    for _ in 0..200 {
        if let Ok(Ok(socket)) =
            tokio::time::timeout(Duration::from_millis(50), TcpStream::connect(server.address)).await
        {
            sockets.push(socket);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(sockets.len() < 200, "the limit was met");
    drop(sockets);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.client.complete(json!({"prompt": "x"})).await.status, 200);
    let page = server.client.get("/metrics").await.text();
    let errors = page.lines().find_map(|l| l.strip_prefix("gemma4_accept_errors_total ")).expect("counted");
    assert!(errors.parse::<f64>().unwrap() > 0.0, "{errors}");
    setrlimit(Resource::Nofile, limit).unwrap();
}
