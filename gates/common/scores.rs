//! Comparing what `score` gives by two paths.

use gemma4_serve::score::Scores;

/// The first place where two scores differ in a bit.
pub fn differences(a: &Scores, b: &Scores) -> Option<String> {
    let states = a.hidden.iter().zip(&b.hidden).enumerate().map(|(i, (a, b))| (format!("state {i}"), a, b));
    for (what, a, b) in states.chain([("logits".to_owned(), &a.logits, &b.logits)]) {
        if a.len() != b.len() {
            return Some(format!("(first in {what}: {} values against {})", a.len(), b.len()));
        }
        if let Some(at) = a.iter().zip(b).position(|(x, y)| x.to_bits() != y.to_bits()) {
            return Some(format!("(first in {what} at {at}: {} against {})", a[at], b[at]));
        }
    }
    None
}
