//! Rust source as a gate reads it: code without comments and strings, the modules it names, the files it declares.

use std::collections::BTreeSet;

/// The text with comments and the contents of strings and characters blanked; line numbers stay.
pub fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => find(&chars, at, |rest| rest[0] == '\n', 0),
            ('/', Some('*')) => find(&chars, at + 2, |rest| rest.starts_with(&['*', '/']), 2),
            ('"', _) => string_end(&chars, at),
            ('r', Some('"' | '#')) if at == 0 || !is_word(chars[at - 1]) => raw_string_end(&chars, at),
            ('\'', Some('\\')) => find(&chars, at + 3, |rest| rest[0] == '\'', 1),
            // 'x' is a character; 'x without a closing quote is a lifetime.
            ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

fn find(chars: &[char], from: usize, is_end: impl Fn(&[char]) -> bool, length: usize) -> usize {
    (from..chars.len()).find(|&i| is_end(&chars[i..])).map_or(chars.len(), |i| i + length)
}

fn string_end(chars: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of r"...", r#"..."#; `open` itself where it is no raw string (`r#type`).
fn raw_string_end(chars: &[char], open: usize) -> usize {
    let hashes = chars[open + 1..].iter().take_while(|&&c| c == '#').count();
    if chars.get(open + 1 + hashes) != Some(&'"') {
        return open;
    }
    let closing: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    find(chars, open + 2 + hashes, |rest| rest.starts_with(&closing), closing.len())
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands as a word of its own: line numbers from 1.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let has = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    code.lines().enumerate().filter(|(_, line)| has(line)).map(|(i, _)| i + 1).collect()
}

/// The crate's modules that a file names: `crate::kv::Pool`, `crate::{kv, device::Stream}`, `crate::{\n  kv,`.
pub fn modules_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        let rest = code[at + path.len()..].trim_start();
        let Some(group) = rest.strip_prefix('{') else {
            named.insert(rest.chars().take_while(|&c| is_word(c)).collect());
            continue;
        };
        let mut depth = 0;
        let mut is_start = true;
        let mut word = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_start = true,
                c if is_word(c) && depth == 0 && is_start => word.push(c),
                c if c.is_whitespace() => {}
                _ => is_start = false,
            }
            if (!is_start || c == ',') && !word.is_empty() {
                named.insert(std::mem::take(&mut word));
            }
        }
        if !word.is_empty() {
            named.insert(word);
        }
    }
    named
}

/// `mod name;` declarations, with the path of `#[path = "..."]` where one stands before it.
pub fn modules_declared(text: &str) -> Vec<(String, Option<String>)> {
    let mut declared = Vec::new();
    let mut path = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.split('"').next().map(str::to_owned);
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(at) = words.iter().position(|w| *w == "mod").filter(|&at| at <= 1)
            && let Some(name) = words.get(at + 1).and_then(|w| w.strip_suffix(';'))
        {
            declared.push((name.to_owned(), path.take()));
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            path = None;
        }
    }
    declared
}
