//! Flags, then a validated [`Config`]: later code sees only values that hold.
//!
//! A bad flag ends the process before anything is bound or loaded, with the flag's name and its range (exit code 2).

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::device::DeviceChoice;
use crate::limits::{PREFILL_CHUNK_MAX, ROWS_MAX, SPARE_CONNECTIONS, WAITING_MAX};
use crate::model::plan::TablePlace;
use crate::model::source::ModelSource;
use crate::model::synthetic::{SyntheticModel, Variant};
use crate::model::weight_format::why_no_folder;
use crate::sampling::LogprobsMode;

/// Model id of the checkpoint compiled into the binary.
pub const EMBEDDED_MODEL_NAME: &str = "gemma4-embedded";

/// Serves a Gemma 4 checkpoint over HTTP (OpenAI completions) from captured CUDA graphs.
#[derive(Parser, Debug)]
#[command(version, about, args_conflicts_with_subcommands = true, allow_negative_numbers = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: ServeFlags,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Writes the teacher-forced logits of a list of token ids, through the kernels and graphs that serve.
    Score(ScoreFlags),
    /// Prints what would be loaded, what it takes and which cards hold it, without a device.
    Inspect(crate::inspect::InspectFlags),
    /// Measures decode steps and prompts on the device, without HTTP.
    Bench(crate::bench::BenchFlags),
    /// Measures what a decode step costs the host, on the software device with its kernels switched off.
    BenchStep(crate::bench_step::BenchStepFlags),
}

/// Which model, in every command.
#[derive(Args, Clone, Debug)]
pub struct ModelFlags {
    /// Folder of the checkpoint (config.json, tokenizer.json, *.safetensors); without it the embedded model.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The shape of a published model with made-up weights, written on the device: no files, for benchmarks and load
    /// tests.
    #[arg(long, value_name = "SIZE", conflicts_with = "model")]
    synthetic: Option<Variant>,
    /// Keeps the last layers of the published pattern only, 1 to all of them.
    #[arg(long, value_name = "LAYERS", requires = "synthetic", value_parser = in_range(1, 1 << 10))]
    synthetic_layers: Option<usize>,
    /// Where the table of per-layer embeddings lies (E2B, E4B): on the device, or on the host in pinned memory, which
    /// leaves the device 4.7 or 5.6 GB more and reads 18 or 22 KB a token across the bus. The bytes are the same.
    #[arg(long, default_value = "device", value_name = "PLACE")]
    pub per_layer_table: TablePlace,
}

#[derive(Args, Debug)]
pub struct ServeFlags {
    #[command(flatten)]
    model: ModelFlags,
    /// The model's id in requests and answers [default: the folder's name].
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Jinja2 file that makes a prompt of a chat's messages [default: the checkpoint's own].
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Where to run: auto (a GPU if there is one, else software), cuda:N, or soft.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Address or host name to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// TCP port to listen on, 0 to 65535; 0 takes a free one. The bound address is printed.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Sequences decoded together, 1 to 128.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = in_range(1, ROWS_MAX))]
    max_running: usize,
    /// Sequences that may wait for a place, 1 to 65536; more are refused with a 503.
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = in_range(1, WAITING_MAX))]
    max_waiting: usize,
    /// Tokens of prompt and answer together, at least 2 [default: the checkpoint's limit, or what memory allows].
    #[arg(long, value_name = "TOKENS", value_parser = in_range(2, 1 << 24))]
    max_context: Option<usize>,
    /// Pages of the global layers' KV pool, at least 1 [default: what memory allows].
    #[arg(long, value_name = "PAGES", value_parser = in_range(1, 1 << 30))]
    kv_pages: Option<usize>,
    /// Prompt tokens computed between two decode steps, 1 to 65536.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = in_range(1, PREFILL_CHUNK_MAX))]
    prefill_chunk: usize,
    /// Launches kernels one by one instead of replaying captured graphs (slow, for debugging).
    #[arg(long)]
    no_graphs: bool,
    /// Collects each step before the next is launched (for A/B; the bytes are the same).
    #[arg(long)]
    no_pipeline: bool,
    /// Uploads the row index before every decode step (for A/B; the bytes are the same).
    #[arg(long)]
    no_fingerprint: bool,
    /// Leaves the tail kernel out and uploads every row's position before every decode step (for A/B; the bytes are the
    /// same).
    #[arg(long)]
    no_tail: bool,
    /// Microseconds to ask for a step's end again and again before parking, 0 to 10000 [default: 50 on a GPU, 0 on the
    /// software device].
    #[arg(long, value_name = "MICROSECONDS", value_parser = in_range(0, 10_000))]
    spin_us: Option<usize>,
    /// Which log-probabilities are reported: raw (the model's own) or processed (of what tokens are drawn from: after
    /// penalties, bias, temperature and filters).
    #[arg(long, default_value = "raw", value_name = "MODE")]
    logprobs_mode: LogprobsMode,
    /// Seconds after SIGTERM in which requests are still accepted while readiness is 503, 0 to 3600.
    #[arg(long, default_value = "5", value_name = "SECONDS", value_parser = seconds(0.0, 3600.0))]
    drain_delay: Duration,
    /// Seconds that requests in flight get to finish after that, 0 to 86400; the rest end with an error.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds(0.0, 86_400.0))]
    drain_timeout: Duration,
    /// Open connections, 1 to 1000000; at the limit the longest idle one is closed for a new one [default: max-running
    /// + max-waiting + 960].
    #[arg(long, value_name = "N", value_parser = in_range(1, 1_000_000))]
    max_connections: Option<usize>,
    /// Seconds a connection may take to send a request's head, idle time between requests included, 0.1 to 3600.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds(0.1, 3600.0))]
    header_timeout: Duration,
    /// Seconds a request's body may take to arrive, 0.1 to 3600.
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds(0.1, 3600.0))]
    body_timeout: Duration,
    /// Seconds in which a client must take some of an answer that waits for it, 0.1 to 3600: enough that a third of the
    /// connection's send buffer (256 KiB) is free again.
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds(0.1, 3600.0))]
    write_timeout: Duration,
    /// Seconds of silence after which a stream gets a comment line, 0.1 to 3600.
    #[arg(long, default_value = "15", value_name = "SECONDS", value_parser = seconds(0.1, 3600.0))]
    stream_keep_alive: Duration,
    /// Seconds a step may take before every request ends with an error and the process exits with code 1, 0.1 to 86400.
    /// A prompt chunk of a large model on the software device takes minutes: raise it there.
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds(0.1, 86_400.0))]
    step_timeout: Duration,
    /// Seconds that loading may go without progress (a tensor placed, a phase ended) before the process exits with code
    /// 1, 0.1 to 86400.
    #[arg(long, default_value = "600", value_name = "SECONDS", value_parser = seconds(0.1, 86_400.0))]
    load_timeout: Duration,
    /// Seconds without a step, with work in flight, after which readiness is 503, 0.1 to 3600.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds(0.1, 3600.0))]
    stall_timeout: Duration,
    /// Log filter, for example `info` or `info,gemma4_serve::server=debug`.
    #[arg(long, default_value = "info", value_name = "FILTER", value_parser = parse_log_filter)]
    log: String,
}

#[derive(Args, Debug)]
pub struct ScoreFlags {
    #[command(flatten)]
    model: ModelFlags,
    /// Where to run: auto, cuda:N, or soft.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// JSON file with a list of token ids.
    #[arg(long, value_name = "FILE.json")]
    ids: PathBuf,
    /// Where the logits go: `logits` [T,V] f32.
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Path through the engine: prefill (all at once, up to 65536), decode (one token at a time through graphs),
    /// chunks:N.
    #[arg(long, default_value = "prefill", value_parser = parse_path)]
    path: ScorePath,
    /// Launches kernels one by one instead of replaying captured graphs.
    #[arg(long)]
    no_graphs: bool,
    /// Also writes the hidden states `hidden.{0..L}` [T,H] f32.
    #[arg(long)]
    hidden: bool,
    /// Keys of one attention segment: 32 [default: 128 in sliding layers, 256 in global ones].
    #[arg(long, value_name = "TOKENS", value_parser = parse_segment)]
    attention_segment: Option<usize>,
}

/// How `score` feeds the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScorePath {
    Prefill,
    Decode,
    Chunks(usize),
}

/// The server's configuration, valid. The effective limits of context and KV pool are the engine's to settle.
#[derive(Clone, Debug)]
pub struct Config {
    pub model: ModelSource,
    pub served_model_name: String,
    /// None: the checkpoint's own.
    pub chat_template: Option<PathBuf>,
    pub device: DeviceChoice,
    pub host: String,
    pub port: u16,
    pub max_running: usize,
    pub max_waiting: usize,
    pub max_context: Option<usize>,
    pub kv_pages: Option<usize>,
    pub prefill_chunk: usize,
    pub per_layer_table: TablePlace,
    pub graphs: bool,
    pub pipeline: bool,
    pub fingerprint: bool,
    pub tail: bool,
    /// None: the device's default.
    pub spin: Option<Duration>,
    pub logprobs_mode: LogprobsMode,
    pub drain_delay: Duration,
    pub drain_timeout: Duration,
    pub max_connections: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub write_timeout: Duration,
    pub stream_keep_alive: Duration,
    pub step_timeout: Duration,
    pub load_timeout: Duration,
    pub stall_timeout: Duration,
    pub log: String,
}

/// The `score` subcommand's configuration.
#[derive(Clone, Debug)]
pub struct ScoreConfig {
    pub model: ModelSource,
    pub device: DeviceChoice,
    pub ids: PathBuf,
    pub out: PathBuf,
    pub path: ScorePath,
    pub graphs: bool,
    pub hidden: bool,
    pub attention_segment: Option<usize>,
    pub per_layer_table: TablePlace,
}

/// A flag whose value is well-formed but cannot be used. `Display` names the flag.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("--model {path}: {reason}")]
    Model { path: String, reason: String },
    #[error("--synthetic-layers {layers}: {variant} has 1 to {layers_max}")]
    SyntheticLayers { layers: usize, variant: &'static str, layers_max: usize },
    #[error("--served-model-name: the name must not be empty")]
    EmptyName,
    #[error("--ids {path}: {reason}")]
    Ids { path: String, reason: String },
}

impl Config {
    pub fn resolve(flags: ServeFlags) -> Result<Self, ConfigError> {
        let per_layer_table = flags.model.per_layer_table;
        let model = flags.model.resolve()?;
        let served_model_name = match (flags.served_model_name, &model) {
            (Some(name), _) if name.trim().is_empty() => return Err(ConfigError::EmptyName),
            (Some(name), _) => name,
            (None, ModelSource::Folder(folder)) => folder_name(folder),
            (None, ModelSource::Synthetic(model)) => model.to_string(),
            (None, ModelSource::Embedded) => EMBEDDED_MODEL_NAME.to_owned(),
        };
        Ok(Self {
            model,
            served_model_name,
            chat_template: flags.chat_template,
            device: flags.device,
            host: flags.host,
            port: flags.port,
            max_running: flags.max_running,
            max_waiting: flags.max_waiting,
            max_context: flags.max_context,
            kv_pages: flags.kv_pages,
            prefill_chunk: flags.prefill_chunk,
            per_layer_table,
            graphs: !flags.no_graphs,
            pipeline: !flags.no_pipeline,
            fingerprint: !flags.no_fingerprint,
            tail: !flags.no_tail,
            spin: flags.spin_us.map(|us| Duration::from_micros(us as u64)),
            logprobs_mode: flags.logprobs_mode,
            drain_delay: flags.drain_delay,
            drain_timeout: flags.drain_timeout,
            // Requests in flight must not take every connection: the probes need some.
            max_connections: flags.max_connections.unwrap_or(flags.max_running + flags.max_waiting + SPARE_CONNECTIONS),
            header_timeout: flags.header_timeout,
            body_timeout: flags.body_timeout,
            write_timeout: flags.write_timeout,
            stream_keep_alive: flags.stream_keep_alive,
            step_timeout: flags.step_timeout,
            load_timeout: flags.load_timeout,
            stall_timeout: flags.stall_timeout,
            log: flags.log,
        })
    }

    /// The configuration in effect, a line a knob, in the order of `--help`; the engine start prints the memory plan
    /// below it.
    pub fn page(&self) -> String {
        let or_auto = |n: Option<usize>| n.map_or("(from checkpoint and memory)".into(), |n| n.to_string());
        let s = |d: Duration| format!("{} s", d.as_secs_f64());
        let rows = [
            ("model", self.model.to_string()),
            ("served-model-name", self.served_model_name.clone()),
            (
                "chat-template",
                self.chat_template.as_ref().map_or("(the checkpoint's)".into(), |path| path.display().to_string()),
            ),
            ("device", self.device.to_string()),
            ("host", self.host.clone()),
            ("port", self.port.to_string()),
            ("max-running", format!("{} sequences", self.max_running)),
            ("max-waiting", format!("{} sequences", self.max_waiting)),
            ("max-context", or_auto(self.max_context)),
            ("kv-pages", or_auto(self.kv_pages)),
            ("prefill-chunk", format!("{} tokens", self.prefill_chunk)),
            ("per-layer-table", self.per_layer_table.to_string()),
            ("graphs", if self.graphs { "on" } else { "off" }.into()),
            ("pipeline", if self.pipeline { "on" } else { "off" }.into()),
            ("fingerprint", if self.fingerprint { "on" } else { "off" }.into()),
            ("tail", if self.tail { "on" } else { "off" }.into()),
            ("spin", self.spin.map_or("(from the device)".into(), |spin| format!("{} us", spin.as_micros()))),
            ("logprobs-mode", self.logprobs_mode.to_string()),
            ("drain-delay", s(self.drain_delay)),
            ("drain-timeout", s(self.drain_timeout)),
            ("max-connections", self.max_connections.to_string()),
            ("header-timeout", s(self.header_timeout)),
            ("body-timeout", s(self.body_timeout)),
            ("write-timeout", s(self.write_timeout)),
            ("stream-keep-alive", s(self.stream_keep_alive)),
            ("step-timeout", s(self.step_timeout)),
            ("load-timeout", s(self.load_timeout)),
            ("stall-timeout", s(self.stall_timeout)),
        ];
        rows.iter().map(|(name, value)| format!("  {name:<18} {value}\n")).collect()
    }
}

impl ScoreConfig {
    pub fn resolve(flags: ScoreFlags) -> Result<Self, ConfigError> {
        let per_layer_table = flags.model.per_layer_table;
        let model = flags.model.resolve()?;
        if !flags.ids.is_file() {
            return Err(ConfigError::Ids { path: flags.ids.display().to_string(), reason: "not a file".into() });
        }
        Ok(Self {
            model,
            device: flags.device,
            ids: flags.ids,
            out: flags.out,
            path: flags.path,
            graphs: !flags.no_graphs,
            hidden: flags.hidden,
            attention_segment: flags.attention_segment,
            per_layer_table,
        })
    }
}

impl ModelFlags {
    pub fn resolve(self) -> Result<ModelSource, ConfigError> {
        check_model_folder(self.model.as_deref())?;
        match (self.model, self.synthetic) {
            (Some(folder), _) => Ok(ModelSource::Folder(folder)),
            (None, None) => Ok(ModelSource::Embedded),
            (None, Some(variant)) => match self.synthetic_layers {
                Some(layers) if layers > variant.layers() => {
                    Err(ConfigError::SyntheticLayers { layers, variant: variant.name(), layers_max: variant.layers() })
                }
                layers => Ok(ModelSource::Synthetic(SyntheticModel { variant, layers })),
            },
        }
    }
}

fn check_model_folder(model: Option<&Path>) -> Result<(), ConfigError> {
    let Some(folder) = model else { return Ok(()) };
    let error = |reason: &str| ConfigError::Model { path: folder.display().to_string(), reason: reason.into() };
    match folder.metadata() {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(error(&why_no_folder(folder))),
        Err(e) => Err(error(&e.to_string())),
    }
}

/// Last part of the path; of `.` or `..` the folder it stands for.
fn folder_name(folder: &Path) -> String {
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder
        .file_name()
        .or(resolved.file_name())
        .map_or_else(|| EMBEDDED_MODEL_NAME.to_owned(), |name| name.to_string_lossy().into_owned())
}

pub(crate) fn in_range(
    min: usize,
    max: usize,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<usize>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from {min} to {max}")),
    }
}

fn seconds(min: f64, max: f64) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f64>() {
        Ok(s) if (min..=max).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("must be a number of seconds from {min} to {max}")),
    }
}

fn parse_path(text: &str) -> Result<ScorePath, String> {
    match text {
        "prefill" => Ok(ScorePath::Prefill),
        "decode" => Ok(ScorePath::Decode),
        _ => match text.strip_prefix("chunks:").and_then(|n| n.parse().ok()) {
            Some(n) if (1..=PREFILL_CHUNK_MAX).contains(&n) => Ok(ScorePath::Chunks(n)),
            _ => Err(format!("must be prefill, decode, or chunks:N with N from 1 to {PREFILL_CHUNK_MAX}")),
        },
    }
}

/// The attention kernels have two cuts: their own (128 keys sliding, 256 global) and 32, which makes tiny models fold.
fn parse_segment(text: &str) -> Result<usize, String> {
    match text {
        "32" => Ok(32),
        _ => Err(format!("{text:?}: the only other segment is 32")),
    }
}

fn parse_log_filter(text: &str) -> Result<String, String> {
    match text.parse::<tracing_subscriber::EnvFilter>() {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("must be a log filter such as `info`: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["gemma4-serve"], flags].concat())
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let config = Config::resolve(parse(&[]).unwrap().serve).unwrap();
        assert_eq!((config.max_running, config.max_waiting, config.prefill_chunk), (64, 1024, 2048));
        assert_eq!((config.drain_delay, config.drain_timeout), (Duration::from_secs(5), Duration::from_secs(60)));
        assert_eq!((config.port, config.device, config.graphs), (8000, DeviceChoice::Auto, true));
        assert_eq!((config.served_model_name.as_str(), config.max_connections), (EMBEDDED_MODEL_NAME, 2048));
        assert!(config.page().contains("max-running        64 sequences\n"), "{}", config.page());
    }

    #[test]
    fn a_bad_flag_is_refused_with_its_name_and_range() {
        // Reliability row 51.
        for (flags, words) in [
            (&["--max-running", "0"][..], &["--max-running", "1 to 128"][..]),
            (&["--max-running", "129"], &["--max-running", "1 to 128"]),
            (&["--max-waiting", "-1"], &["--max-waiting"]),
            (&["--max-waiting=many"], &["--max-waiting", "1 to 65536"]),
            (&["--port", "65536"], &["--port", "65535"]),
            (&["--device", "gpu"], &["--device", "cuda:N"]),
            (&["--device", "cuda:-1"], &["--device", "cuda:N"]),
            (&["--prefill-chunk", "0"], &["--prefill-chunk", "1 to 65536"]),
            (&["--drain-delay", "NaN"], &["--drain-delay", "0 to 3600"]),
            (&["--drain-timeout=-1"], &["--drain-timeout", "0 to 86400"]),
            (&["--write-timeout", "0"], &["--write-timeout", "0.1 to 3600"]),
            (&["--max-context", "1"], &["--max-context", "2 to"]),
            (&["--kv-pages", "0"], &["--kv-pages", "1 to"]),
            (&["--logprobs-mode", "raw_logits"], &["--logprobs-mode", "raw or processed"]),
            (&["--log", "a=b=c"], &["--log", "filter"]),
            (&["--no-such-flag"], &["--no-such-flag"]),
            (&["score", "--ids", "x", "--out", "y", "--path", "chunks:0"], &["--path", "chunks:N"]),
            (&["score", "--ids", "x", "--out", "y", "--attention-segment", "33"], &["--attention-segment", "32"]),
            (&["score", "--ids", "x"], &["--out"]),
        ] {
            let error = parse(flags).expect_err(&flags.join(" "));
            assert_eq!(error.exit_code(), 2);
            for word in words {
                assert!(error.to_string().contains(word), "{flags:?} lacks {word}: {error}");
            }
        }
    }

    #[test]
    fn the_model_name_is_the_folders_unless_given() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("gemma-4-31b");
        std::fs::create_dir(&folder).unwrap();
        let folder = format!("{}/", folder.display());
        let config = Config::resolve(parse(&["--model", &folder]).unwrap().serve).unwrap();
        assert_eq!(config.served_model_name, "gemma-4-31b");
        let named = parse(&["--model", &folder, "--served-model-name", "m"]).unwrap().serve;
        assert_eq!(Config::resolve(named).unwrap().served_model_name, "m");
        let missing = parse(&["--model", "/nonexistent/model"]).unwrap().serve;
        assert!(Config::resolve(missing).unwrap_err().to_string().starts_with("--model /nonexistent/model: "));
        let empty = parse(&["--served-model-name", " "]).unwrap().serve;
        assert_eq!(Config::resolve(empty).unwrap_err(), ConfigError::EmptyName);
    }

    #[test]
    fn a_synthetic_model_is_named_after_its_size() {
        let config = |flags: &[&str]| Config::resolve(parse(flags).unwrap().serve);
        let all = config(&["--synthetic", "31b"]).unwrap();
        assert_eq!(
            (all.served_model_name.as_str(), all.model.to_string().as_str()),
            ("gemma-4-31b-synthetic", "gemma-4-31b-synthetic")
        );
        let cut = config(&["--synthetic", "12b", "--synthetic-layers", "2"]).unwrap();
        assert_eq!(cut.served_model_name, "gemma-4-12b-synthetic-2-layers");
        let error = config(&["--synthetic", "12b", "--synthetic-layers", "49"]).unwrap_err().to_string();
        assert_eq!(error, "--synthetic-layers 49: 12b has 1 to 48");
        for (flags, word) in [
            (&["--synthetic", "12b", "--model", "/tmp"][..], "--model"),
            (&["--synthetic-layers", "2"], "--synthetic"),
            (&["--synthetic", "12b", "--synthetic-layers", "0"], "1 to"),
            (&["score", "--ids", "x", "--out", "y", "--synthetic", "9b"], "12b"),
        ] {
            let error = parse(flags).unwrap_err().to_string();
            assert!(error.contains(word), "{word} is not in: {error}");
        }
    }

    #[test]
    fn score_has_flags_of_its_own() {
        let cli = parse(&["score", "--ids", "i.json", "--out", "o", "--path", "chunks:7", "--hidden"]).unwrap();
        let Some(Command::Score(flags)) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!((flags.path, flags.hidden, flags.no_graphs), (ScorePath::Chunks(7), true, false));
        assert!(matches!(ScoreConfig::resolve(flags), Err(ConfigError::Ids { .. })));
        assert!(parse(&["--port", "1", "score", "--ids", "i", "--out", "o"]).is_err());
    }
}
