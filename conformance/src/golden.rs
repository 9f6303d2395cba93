//! What tests of goldens share: when to rewrite them, and where two values differ.

use serde_json::Value;

/// Relative distance of two numbers that count as the same.
const CLOSE: f64 = 1e-9;

/// Whether goldens are to be written anew: `UPDATE_GOLDENS=1`.
#[must_use]
pub fn rewrites() -> bool {
    std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1")
}

/// Paths at which two values differ: floats by more than 1e-9 of themselves, anything else at all.
pub fn differences(path: &str, was: &Value, is: &Value, found: &mut Vec<String>) {
    match (was, is) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                differences(&format!("{path}.{key}"), value, b.get(key).unwrap_or(&Value::Null), found);
            }
            let new = b.keys().filter(|key| !a.contains_key(*key));
            found.extend(new.map(|key| format!("{path}.{key}: is new")));
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{index}]"), a, b, found);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().expect("a float"), b.as_f64().expect("a float"));
            if (a - b).abs() > CLOSE * a.abs() {
                found.push(format!("{path}: was {a}, is {b}"));
            }
        }
        _ if was == is => {}
        _ => found.push(format!("{path}: was {was}, is {is}")),
    }
}
