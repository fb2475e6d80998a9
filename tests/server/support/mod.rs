//! What the server tests share: a server in this process on a real socket, a scripted engine behind it, a small client.
#![allow(dead_code, unused_imports)] // Each test file uses its part.

pub mod client;
pub mod scripted;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use gemma4_serve::config::{Cli, Config};
use gemma4_serve::engine::handle;
use gemma4_serve::sampling::SamplingParams;
use gemma4_serve::server::{self, App, Exit, ServedModel};
use gemma4_serve::text::{ChatTemplate, Tokenizer};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use client::{Client, Reply, Stream};
pub use scripted::{Command, Control, Plan};

pub const EOS: u32 = 1;
pub const BOS: u32 = 2;
pub const CHAT_TEMPLATE: &str = include_str!("../../../models/tiny/chat_template.jinja");

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(include_bytes!("../../data/tokenizer.json")).expect("the test tokenizer")
}

/// Ids of a text, no BOS.
pub fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text).expect("text")
}

pub fn model(max_context: usize, kv_tokens_max: usize) -> ServedModel {
    ServedModel {
        id: "m".into(),
        tokenizer: tokenizer(),
        chat_template: Some(ChatTemplate::new(CHAT_TEMPLATE.into(), &tokenizer(), BOS, EOS).expect("a template")),
        bos_id: BOS,
        eos_ids: vec![1, 50, 106],
        refused_ids: vec![(46, "image".into())],
        vocab_size: 512,
        sampling: SamplingParams { temperature: 1.0, top_k: 64, top_p: 0.95, ..SamplingParams::greedy() },
        max_context,
        kv_tokens_max,
    }
}

/// A running server. Dropping it leaves its tasks to the test's runtime, which ends with the test.
pub struct Server {
    pub address: SocketAddr,
    pub client: Client,
    pub app: Arc<App>,
    pub engine: Control,
    signals: mpsc::Sender<()>,
    exit: JoinHandle<Exit>,
}

/// How to start one.
pub struct Setup {
    pub flags: Vec<&'static str>,
    pub max_context: usize,
    pub kv_tokens_max: usize,
    pub max_running: usize,
    /// Send buffer of accepted sockets; small ones fill soon.
    pub send_buffer_bytes: Option<u32>,
    /// The engine waits with `ready` until the test says so.
    pub loading: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            flags: vec![],
            max_context: 100_000,
            kv_tokens_max: 100_000,
            max_running: 64,
            send_buffer_bytes: None,
            loading: false,
        }
    }
}

impl Setup {
    pub fn flags(flags: &[&'static str]) -> Self {
        Self { flags: flags.to_vec(), ..Self::default() }
    }

    /// Starts the server; the engine answers each request with what `plan` says.
    pub async fn start(self, plan: impl Fn(&handle::Ticket) -> Vec<u32> + Send + 'static) -> Server {
        let cli = Cli::try_parse_from([&["gemma4-serve"], self.flags.as_slice()].concat()).expect("flags");
        let config = Config::resolve(cli.serve).expect("config");
        let socket = TcpSocket::new_v4().expect("socket");
        if let Some(bytes) = self.send_buffer_bytes {
            socket.set_send_buffer_size(bytes).expect("send buffer");
        }
        socket.bind("127.0.0.1:0".parse().expect("address")).expect("bind");
        let listener: TcpListener = socket.listen(1024).expect("listen");
        let address = listener.local_addr().expect("address");
        let (engine, door) = handle::door(config.max_waiting);
        let app = App::new(config, engine);
        let (control, end) = scripted::start(door, Box::new(plan), self.max_running);
        let (signals, receiver) = mpsc::channel(8);
        let exit = tokio::spawn(server::run(listener, app.clone(), receiver, end));
        let server = Server { address, client: Client { address }, app, engine: control, signals, exit };
        if !self.loading {
            server.load(model(self.max_context, self.kv_tokens_max)).await;
        }
        server
    }
}

impl Server {
    /// Ends the loading.
    pub async fn load(&self, model: ServedModel) {
        self.app.set_model(model);
        self.engine.send(Command::Ready);
        self.until("the engine is ready", || self.app.ready().is_ok()).await;
    }

    /// As SIGTERM does.
    pub async fn signal(&self) {
        self.signals.send(()).await.expect("the server runs");
    }

    /// The process's exit code; fails after 60 s.
    pub async fn exit(self) -> Exit {
        tokio::time::timeout(Duration::from_secs(60), self.exit).await.expect("an exit").expect("no panic")
    }

    /// Waits for a fact, up to 30 s.
    pub async fn until(&self, what: &str, fact: impl Fn() -> bool) {
        let start = Instant::now();
        while !fact() {
            assert!(start.elapsed() < Duration::from_secs(30), "never came true: {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Nothing is left of any request: engine, queue, drain count.
    pub async fn until_quiet(&self) {
        self.until("everything ended", || {
            self.engine.running() == 0
                && self.app.engine.waiting() == 0
                && self.app.engine.live() == 0
                && self.app.in_flight() == 0
        })
        .await;
    }
}
