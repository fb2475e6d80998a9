//! File descriptors run out and come back. One test: the limit is the process's (reliability row 10).

mod support;

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use support::{Setup, ids};
use tokio::net::TcpStream;

#[tokio::test]
async fn accept_pauses_when_descriptors_run_out_and_recovers() {
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
