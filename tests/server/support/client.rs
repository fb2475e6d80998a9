//! One connection a request; dropping a [`Stream`] closes its socket.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// No single wait of a test is longer.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub struct Client {
    pub address: SocketAddr,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).expect("UTF-8")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().expect("ASCII"))
    }

    /// `error.code`, after checking the shape of the error object.
    pub fn error_code(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error object: {json}"));
        let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert!(!error["message"].as_str().expect("a sentence").is_empty());
        error["code"].as_str().expect("a word").to_owned()
    }
}

/// A response whose body is read piece by piece.
pub struct Stream {
    pub status: u16,
    pub headers: HeaderMap,
    response: Response<Incoming>,
    connection: JoinHandle<()>,
    buffer: Vec<u8>,
    ended: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connect")
    }

    /// A connection whose client takes a few kilobytes at a time.
    pub async fn connect_slow(&self) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a receive buffer");
        socket.connect(self.address).await.expect("connect")
    }

    /// An answer of more than a megabyte on such a connection, as soon as its head is there.
    pub async fn open_large(&self) -> Stream {
        let body = serde_json::json!({"prompt": "x", "max_tokens": 90_000, "ignore_eos": true, "logprobs": 0});
        self.open_on(self.connect_slow().await, "POST", "/v1/completions", &[], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }

    /// `POST /v1/completions`, the whole answer.
    pub async fn complete(&self, body: Value) -> Reply {
        self.send("POST", "/v1/completions", &[], body.to_string()).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let mut stream = self.open_with(method, path, headers, body).await;
        let mut body = Vec::new();
        while let Some(frame) = tokio::time::timeout(LIMIT, stream.response.body_mut().frame()).await.expect("in time")
        {
            if let Ok(data) = frame.expect("a whole body").into_data() {
                body.extend_from_slice(&data);
            }
        }
        Reply { status: stream.status, headers: stream.headers.clone(), body: body.into() }
    }

    /// `POST /v1/completions`, as soon as the head is there.
    pub async fn open(&self, body: Value) -> Stream {
        self.open_with("POST", "/v1/completions", &[], body.to_string()).await
    }

    pub async fn open_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Stream {
        let socket = self.connect().await;
        self.open_on(socket, method, path, headers, body).await
    }

    pub async fn open_on(
        &self,
        socket: TcpStream,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Stream {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("handshake");
        let connection = tokio::spawn(async move { drop(connection.await) });
        let abort = AbortOnDrop(connection.abort_handle());
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("request");
        let response =
            tokio::time::timeout(LIMIT, sender.send_request(request)).await.expect("in time").expect("a response");
        std::mem::forget(abort);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Stream { status, headers, response, connection, buffer: Vec::new(), ended: false }
    }
}

/// Closes the socket when a test drops the request before its head came.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Stream {
    /// The next server-sent event's raw text without the blank line; none at the end or when the body broke off.
    pub async fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let rest = self.buffer.split_off(end + 2);
                let mut event = std::mem::replace(&mut self.buffer, rest);
                event.truncate(end);
                return Some(String::from_utf8(event).expect("UTF-8"));
            }
            if self.ended {
                assert!(self.buffer.is_empty(), "half an event: {:?}", self.buffer);
                return None;
            }
            match tokio::time::timeout(LIMIT, self.response.body_mut().frame()).await.expect("in time") {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(_)) | None => self.ended = true,
            }
        }
    }

    /// The next event's JSON; comments are skipped. None at the end, which includes `[DONE]`: see [`Stream::rest`].
    pub async fn chunk(&mut self) -> Option<Value> {
        loop {
            let event = self.event().await?;
            let Some(data) = event.strip_prefix("data: ") else {
                assert!(event.starts_with(':'), "{event}");
                continue;
            };
            if data == "[DONE]" {
                assert_eq!(self.event().await, None, "[DONE] is the last");
                return None;
            }
            return Some(serde_json::from_str(data).expect("JSON"));
        }
    }

    /// What is left of the body, to its end.
    pub async fn whole(&mut self) -> Vec<u8> {
        let mut body = std::mem::take(&mut self.buffer);
        while let Some(frame) = tokio::time::timeout(LIMIT, self.response.body_mut().frame()).await.expect("in time") {
            body.extend(frame.expect("a whole body").into_data().unwrap_or_default());
        }
        body
    }

    /// All further data of the stream, `[DONE]` included, without comments.
    pub async fn rest(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(event) = self.event().await {
            if let Some(data) = event.strip_prefix("data: ") {
                all.push(data.to_owned());
            } else {
                assert!(event.starts_with(':'), "{event}");
            }
        }
        all
    }
}
