//! Files that people already have, in and out.
//!
//! Every reader takes text and gives a value or every reason why not; it refuses what it does not understand, because
//! a model read almost right is planned wrong. **Deliberately ignorant of** the file system: the caller reads.
//!
//! ```
//! use trainyard_formats as formats;
//! let text = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
//!     "num_attention_heads": 4, "vocab_size": 256}"#;
//! let model = formats::hugging_face::read(text, "tiny/config.json").expect("a sound file");
//! assert_eq!(model.name, "tiny");
//! assert_eq!(model.head_dim, 16);
//! ```

pub mod deepspeed;
pub mod hugging_face;
pub mod measured_runs;
pub mod megatron;
pub mod nccl_tests;
pub mod rank_map;
pub mod sailor;
pub mod tokenizer;
pub mod topology;
pub mod torchtitan;
pub mod training;

mod json;
mod refusals;
mod settings;
#[cfg(test)]
mod testing;
mod text;
