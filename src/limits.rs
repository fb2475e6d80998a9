//! Every limit by name, in one place; relations between limits are checked at compile time.

/// Largest number of rows of a decode step, and the largest bucket.
pub const ROWS_MAX: usize = 128;
/// Buckets of decode graphs, up to `--max-running`.
pub const BUCKETS: [usize; 12] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Stop ids a request may carry beside the model's EOS list (slots hold that many on the device).
pub const STOP_TOKEN_IDS_MAX: usize = 16;
/// EOS ids a model may have.
pub const EOS_IDS_MAX: usize = 16;
/// Stop strings a request may carry, and the length of each in bytes (the OpenAI limit is four).
pub const STOP_STRINGS_MAX: usize = 4;
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// Prompts of one request to the completions route.
pub const PROMPTS_PER_REQUEST_MAX: usize = 128;
/// Entries of a request's `logit_bias`, and ids of its `allowed_token_ids`.
pub const LOGIT_BIASES_MAX: usize = 1024;
pub const ALLOWED_TOKEN_IDS_MAX: usize = 1024;
/// Words of `bad_words`, each of which counts twice (with and without a space in front); tokens of one, and of all.
pub const BAD_WORDS_MAX: usize = 64;
pub const TOKENS_PER_BAD_WORD_MAX: usize = 16;
pub const BAD_WORD_TOKENS_MAX: usize = 1024;
/// Choices a prompt (`n`).
pub const CHOICES_PER_PROMPT_MAX: usize = 128;
/// Bytes of a client's `X-Request-Id`.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// A request whose body has more bytes is parsed, rendered and tokenised off the reactor threads (4 KiB of text take
/// about 1 ms); so is an echo of more tokens turned into text.
pub const TOKENISE_INLINE_BYTES_MAX: usize = 4096;
/// Tokens with log-probabilities that are named and written on the reactor threads; more are done beside them.
pub const SCORED_INLINE_MAX: usize = 128;
/// Largest `--max-waiting`.
pub const WAITING_MAX: usize = 65_536;
/// Largest `--prefill-chunk`.
pub const PREFILL_CHUNK_MAX: usize = 65_536;
/// Bytes of a client's `user` or `metadata` that go to the log.
pub const LOGGED_FIELD_BYTES_MAX: usize = 512;
/// Body of a request in bytes.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// Bodies above this many bytes share [`LARGE_BODIES_BYTES_MAX`], once so many have arrived; smaller ones never wait.
pub const SMALL_BODY_BYTES_MAX: usize = 64 << 10;
/// Bytes of all larger bodies being read, parsed and tokenised at one time. Tokenising takes about a hundred times a
/// text's bytes where every character is a token.
pub const LARGE_BODIES_BYTES_MAX: usize = 32 << 20;
/// Connections beside those of running and waiting requests that `--max-connections` leaves by default (probes,
/// uploads, refusals, idle keep-alive).
pub const SPARE_CONNECTIONS: usize = 960;
/// File descriptors that are not connections: device, log, checkpoint shards, listener.
pub const OTHER_DESCRIPTORS: usize = 256;
/// Bytes of a safetensors header; the largest published one is below 1 MiB.
pub const SAFETENSORS_HEADER_BYTES_MAX: usize = 64 << 20;
/// Bytes of a tensor's name; the longest published one is below 100.
pub const TENSOR_NAME_BYTES_MAX: usize = 512;

const _: () = assert!(SMALL_BODY_BYTES_MAX < BODY_BYTES_MAX && BODY_BYTES_MAX <= LARGE_BODIES_BYTES_MAX);
const _: () = assert!(BUCKETS[BUCKETS.len() - 1] == ROWS_MAX);
