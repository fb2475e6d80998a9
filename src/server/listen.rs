//! Connections: accepted with a cap and a pause on errors, each with its time limits, closed in order at the end.
//!
//! A silent or half-open peer costs one connection until the head's time limit; at the cap, the connection that has
//! been idle longest makes room for a new one, so idle sockets cannot keep others out. A peer that stops reading is
//! found by the write time limit: of our own pending write, and of unacknowledged bytes in the kernel
//! (TCP_USER_TIMEOUT). A peer that left is found while its request is served, whatever it sent before it left.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::metrics::{ACCEPT_ERRORS_TOTAL, CONNECTIONS_CLOSED_TOTAL, CONNECTIONS_OPEN};
use crate::server::App;

/// Pause after a failed accept, doubled at each failure in a row up to the second.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a full house waits for a connection to end before it looks for an idle one again.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// How often a connection with a request looks whether its peer is still there.
const PEER_LOOK: Duration = Duration::from_millis(100);
/// What the kernel may hold unsent of a connection (it takes twice that, for its own records). A write that waits goes
/// on when a third of it is free: so the smaller, the slower a client may read and be seen to read; and the larger, the
/// faster a far one is served.
const SEND_BUFFER_BYTES: usize = 128 << 10;

/// A listener on `host` and `port`, whose connections have bounded send buffers.
pub async fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((host, port)).await?;
    rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER_BYTES)?;
    Ok(listener)
}

/// Accepts and serves connections until `stop`, then lets each finish its answer; dropping the future cuts them off.
pub async fn serve(listener: TcpListener, app: Arc<App>, router: Router, stop: CancellationToken) {
    let mut connections = Connections { list: HashMap::new(), tasks: JoinSet::new(), next: 0 };
    let mut pause = ACCEPT_PAUSE_MIN;
    // Accepted, and waiting for room: at the cap an idle connection is closed for somebody, not on suspicion.
    let mut arrived = None;
    loop {
        connections.reap();
        if let Some(socket) = arrived.take() {
            if connections.list.len() < app.config.max_connections {
                connections.start(socket, &app.config, router.clone(), stop.clone());
                continue;
            }
            connections.close_longest_idle();
            arrived = Some(socket);
            tokio::select! {
                () = stop.cancelled() => break,
                _ = tokio::time::timeout(FULL_PAUSE, connections.join_next()) => continue,
            }
        }
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            // Ended tasks are reaped as they end, so an idle server holds nothing of them.
            () = connections.join_next(), if !connections.list.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                pause = ACCEPT_PAUSE_MIN;
                arrived = Some(socket);
            }
            Err(e) if peers_own(&e) => {}
            Err(e) => {
                // File descriptors or memory ran out: trying again at once would spin.
                metrics::counter!(ACCEPT_ERRORS_TOTAL).increment(1);
                tracing::warn!("accept failed, pausing {} ms: {e}", pause.as_millis());
                connections.close_longest_idle();
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
            }
        }
    }
    drop((listener, arrived));
    while !connections.list.is_empty() {
        connections.join_next().await;
    }
}

/// An error of the one connection, gone before it was accepted.
fn peers_own(e: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(e.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused | Interrupted)
}

/// Shared by a connection's task and the accept loop.
struct Connection {
    /// Requests whose answer is not yet written.
    busy: AtomicUsize,
    idle_since: Mutex<Instant>,
    close: Notify,
    /// A request began.
    began: Notify,
}

struct Connections {
    list: HashMap<u64, Arc<Connection>>,
    tasks: JoinSet<u64>,
    next: u64,
}

impl Connections {
    fn start(&mut self, socket: TcpStream, config: &Config, router: Router, stop: CancellationToken) {
        let connection = Arc::new(Connection {
            busy: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            close: Notify::new(),
            began: Notify::new(),
        });
        let id = self.next;
        self.next += 1;
        self.list.insert(id, connection.clone());
        let (header_timeout, write_timeout) = (config.header_timeout, config.write_timeout);
        self.tasks.spawn(async move {
            serve_connection(socket, connection, router, stop, header_timeout, write_timeout).await;
            id
        });
        self.gauge();
    }

    fn gauge(&self) {
        metrics::gauge!(CONNECTIONS_OPEN).set(self.list.len() as f64);
    }

    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.forget(ended.map(|(_, id)| id).ok());
        }
    }

    async fn join_next(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            self.forget(ended.ok());
        }
    }

    fn forget(&mut self, id: Option<u64>) {
        match id {
            Some(id) => drop(self.list.remove(&id)),
            // A task that panicked did not say which it was; its end of the connection is gone.
            None => self.list.retain(|_, connection| Arc::strong_count(connection) > 1),
        }
        self.gauge();
    }

    fn close_longest_idle(&self) {
        let idle = self.list.values().filter(|c| c.busy.load(Ordering::Acquire) == 0);
        if let Some(connection) = idle.min_by_key(|c| *c.idle_since.lock()) {
            metrics::counter!(CONNECTIONS_CLOSED_TOTAL, "reason" => "idle").increment(1);
            // So that the next look finds another one while this one ends.
            *connection.idle_since.lock() = Instant::now();
            connection.close.notify_one();
        }
    }
}

async fn serve_connection(
    socket: TcpStream,
    connection: Arc<Connection>,
    router: Router,
    stop: CancellationToken,
    header_timeout: Duration,
    write_timeout: Duration,
) {
    set_socket_limits(&socket, write_timeout);
    let socket = Arc::new(socket);
    let service = TowerToHyperService::new(router);
    let shared = connection.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = Busy::new(shared.clone());
        let answer = hyper::service::Service::call(&service, request.map(Body::new) as Request);
        async move {
            let response: Response = answer.await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| Guarded { body, busy: Some(busy) }))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(TimedIo::new(socket.clone(), write_timeout)), service);
    let left = peer_left(&socket, &connection);
    tokio::pin!(served, left);
    let result = tokio::select! {
        result = served.as_mut() => Some(result),
        () = connection.close.notified() => None,
        () = stop.cancelled() => None,
        () = left.as_mut() => return,
    };
    let result = match result {
        Some(result) => result,
        // No request is being served, so none is cut off; what is half read of a head never became one.
        None if connection.busy.load(Ordering::Acquire) == 0 => return,
        None => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                result = served => result,
                () = left => return,
            }
        }
    };
    if let Err(e) = result {
        tracing::debug!("connection ended: {e}");
    }
}

/// Ends when the peer has closed its side while a request is served; then the request is dropped with the connection.
/// hyper sees that itself, but not behind bytes that it leaves unread until the answer is out (a line break after the
/// body, the next request).
async fn peer_left(socket: &TcpStream, connection: &Connection) {
    loop {
        // An idle connection is left alone: hyper reads from it, and looking costs.
        if connection.busy.load(Ordering::Acquire) == 0 {
            connection.began.notified().await;
        }
        tokio::time::sleep(PEER_LOOK).await;
        if connection.busy.load(Ordering::Acquire) == 0 {
            continue;
        }
        // Ready at once where there is anything to know: bytes, or the end behind them.
        match socket.ready(Interest::READABLE).now_or_never() {
            Some(Ok(ready)) if ready.is_read_closed() => return,
            _ => {}
        }
    }
}

/// Time limits the kernel keeps: unacknowledged bytes, and a peer that vanished while nothing is sent.
fn set_socket_limits(socket: &TcpStream, write_timeout: Duration) {
    use rustix::net::sockopt::*;
    let _ = socket.set_nodelay(true);
    let set = || -> rustix::io::Result<()> {
        set_tcp_user_timeout(socket, u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX))?;
        set_socket_keepalive(socket, true)?;
        set_tcp_keepidle(socket, Duration::from_secs(30))?;
        set_tcp_keepintvl(socket, Duration::from_secs(10))?;
        set_tcp_keepcnt(socket, 3)
    };
    if let Err(e) = set() {
        tracing::debug!("socket limits not set: {e}");
    }
}

/// Marks a connection busy from the head of a request to the end of its answer.
struct Busy(Arc<Connection>);

impl Busy {
    fn new(connection: Arc<Connection>) -> Self {
        connection.busy.fetch_add(1, Ordering::AcqRel);
        connection.began.notify_one();
        Self(connection)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A body that keeps its connection busy until its last bytes are the kernel's: hyper drops the body itself when it has
/// taken them, which may be megabytes before.
struct Guarded {
    body: Body,
    busy: Option<Busy>,
}

/// The last bytes of a body.
struct Last {
    data: bytes::Bytes,
    _busy: Option<Busy>,
}

impl AsRef<[u8]> for Last {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl HttpBody for Guarded {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) if self.body.is_end_stream() => Some(Ok(match frame.into_data() {
                Ok(data) => Frame::data(bytes::Bytes::from_owner(Last { data, _busy: self.busy.take() })),
                Err(trailers) => trailers,
            })),
            other => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket whose pending write fails when the peer takes nothing for the time limit. Shared with the connection's
/// task, which watches it.
struct TimedIo {
    socket: Arc<TcpStream>,
    limit: Duration,
    /// Runs while a write is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedIo {
    fn new(socket: Arc<TcpStream>, limit: Duration) -> Self {
        Self { socket, limit, deadline: None }
    }

    /// Tries `write` whenever the socket can take something; its time limit runs while it cannot.
    fn poll_timed(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(can) = self.socket.poll_write_ready(cx) {
            match can.and_then(|()| write(&self.socket)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.deadline = None;
                    return Poll::Ready(result);
                }
            }
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        ready!(deadline.as_mut().poll(cx));
        metrics::counter!(CONNECTIONS_CLOSED_TOTAL, "reason" => "write_timeout").increment(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for TimedIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read_buf(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for TimedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_timed(cx, |socket| socket.try_write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_timed(cx, |socket| socket.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written is the kernel's.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write)?))
    }
}
