//! Stop strings over text, not tokens (B29), holding back no more than must be (B30, B31).
//!
//! Definition: the text ends before the stop string whose *last* byte comes first; of several that end on the same
//! byte, before the longest. Ending first, not starting first, is what makes the result a function of the text alone:
//! it never depends on how the text was cut into deltas.
//!
//! For each stop string the matcher keeps the length of the longest suffix of the text that is a prefix of it
//! (Knuth, Morris, Pratt), so a byte costs amortised constant time for each string. The longest of these suffixes is
//! exactly what must be held back: it may yet become a match, and nothing before it can. It starts with the first byte
//! of a stop string, so a character is never cut.
//!
//! A matcher that keeps the stop string in the text ends it behind the match instead, and has nothing to hold back.

pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text not yet released: a proper prefix of some stop string.
    held: String,
    matched: bool,
    /// The text ends behind the stop string, not before it.
    keeps: bool,
}

struct Pattern {
    bytes: Vec<u8>,
    /// failure[i]: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    failure: Vec<usize>,
    /// Length of the longest suffix of the text so far that is a prefix of `bytes`.
    state: usize,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut failure = vec![0; bytes.len()];
        let mut k = 0;
        for i in 1..bytes.len() {
            while k > 0 && bytes[i] != bytes[k] {
                k = failure[k - 1];
            }
            if bytes[i] == bytes[k] {
                k += 1;
            }
            failure[i] = k;
        }
        Self { bytes, failure, state: 0 }
    }

    /// Takes one byte; true when the text now ends with the whole pattern.
    fn advance(&mut self, byte: u8) -> bool {
        while self.state > 0 && byte != self.bytes[self.state] {
            self.state = self.failure[self.state - 1];
        }
        if byte == self.bytes[self.state] {
            self.state += 1;
        }
        let whole = self.state == self.bytes.len();
        if whole {
            // On to the next one, for text that no match may end.
            self.state = self.failure[self.state - 1];
        }
        whole
    }
}

impl StopMatcher {
    /// Empty strings are ignored: they would match before the first byte (the route refuses them with a 400).
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let patterns = stops.iter().map(AsRef::as_ref).filter(|s| !s.is_empty()).map(Pattern::new).collect();
        Self { patterns, held: String::new(), matched: false, keeps: false }
    }

    /// Whether the stop string itself is part of the text.
    pub fn keeping(self, keeps: bool) -> Self {
        Self { keeps, ..self }
    }

    /// Adds text in which no match may end; a stop string may begin in it.
    pub fn pass(&mut self, text: &str, out: &mut String) {
        self.take(text, out, false);
    }

    /// Adds text, appends to `out` what can be released; true once a stop string has matched. After a match nothing is
    /// released any more.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        self.take(text, out, true)
    }

    fn take(&mut self, text: &str, out: &mut String, may_match: bool) -> bool {
        if self.matched {
            return true;
        }
        if self.patterns.is_empty() {
            out.push_str(text);
            return false;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            let mut longest = 0;
            for pattern in &mut self.patterns {
                if pattern.advance(byte) {
                    longest = longest.max(pattern.bytes.len());
                }
            }
            if longest > 0 && may_match {
                self.matched = true;
                let cut = if self.keeps { 0 } else { longest };
                out.push_str(&self.held[..before + i + 1 - cut]);
                self.held.clear();
                return true;
            }
        }
        let hold = if self.keeps { 0 } else { self.patterns.iter().map(|p| p.state).max().unwrap_or(0) };
        let release = self.held.len() - hold;
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        false
    }

    /// No more text: what was held is released, since no stop string followed.
    pub fn finish(&mut self, out: &mut String) {
        if !self.matched {
            out.push_str(&self.held);
        }
        self.held.clear();
    }

    pub fn matched(&self) -> bool {
        self.matched
    }

    /// Text held back at this moment.
    pub fn held(&self) -> &str {
        &self.held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Deltas released for `parts`, and whether a stop matched.
    fn run(stops: &[String], parts: &[&str]) -> (Vec<String>, bool) {
        let mut matcher = StopMatcher::new(stops);
        let mut deltas = Vec::new();
        for part in parts {
            let mut delta = String::new();
            matcher.push(part, &mut delta);
            deltas.push(delta);
        }
        let mut rest = String::new();
        matcher.finish(&mut rest);
        deltas.push(rest);
        (deltas, matcher.matched())
    }

    /// The definition, by brute force.
    fn reference(stops: &[String], text: &str) -> (String, bool) {
        for end in 0..=text.len() {
            let hit = stops.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes())).map(|s| s.len()).max();
            if let Some(len) = hit {
                return (text[..end - len].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn a_stop_string_over_two_tokens_is_seen_at_once() {
        // B29
        let (deltas, matched) = run(&["beta gamma".into()], &["alpha", " beta", " gamma", " delta"]);
        assert_eq!((deltas.concat().as_str(), matched), ("alpha ", true));
    }

    #[test]
    fn the_leading_part_of_a_stop_string_does_not_leak_and_a_near_miss_is_released() {
        // B30
        let stop = ["\nUser:".to_string()];
        assert_eq!(run(&stop, &["ok", "\nUser", ":"]), (vec!["ok".into(), "".into(), "".into(), "".into()], true));
        assert_eq!(run(&stop, &["ok", "\nUser", "s"]).0, ["ok", "", "\nUsers", ""]);
    }

    #[test]
    fn only_a_proper_prefix_is_held() {
        // B31
        let mut matcher = StopMatcher::new(&["ABCDEFGHIJ"]);
        let mut out = String::new();
        matcher.push("a long answer ABC", &mut out);
        assert_eq!((out.as_str(), matcher.held()), ("a long answer ", "ABC"));
        matcher.push("X", &mut out);
        assert_eq!((out.as_str(), matcher.held()), ("a long answer ABCX", ""));
    }

    #[test]
    fn b34_a_kept_stop_string_ends_the_text_and_nothing_is_held_back() {
        let mut matcher = StopMatcher::new(&["bc", "abcd"]).keeping(true);
        let mut out = String::new();
        assert!(!matcher.push("xxab", &mut out) && out == "xxab");
        assert!(matcher.push("cd", &mut out) && out == "xxabc");
        assert!(matcher.push("more", &mut out) && out == "xxabc");
        matcher.finish(&mut out);
        assert_eq!(out, "xxabc");
    }

    fn small(max: usize) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é', '🌍']), 1..=max)
            .prop_map(|v| v.into_iter().collect())
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_text_of_the_unsplit_answer(
            stops in prop::collection::vec(small(4), 0..4),
            text in small(24),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(chars.len() + 1)).collect();
            at.extend([0, chars.len()]);
            at.sort_unstable();
            let parts: Vec<String> = at.windows(2).map(|w| chars[w[0]..w[1]].iter().collect()).collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let (deltas, matched) = run(&stops, &parts);
            prop_assert_eq!((deltas.concat(), matched), reference(&stops, &text));
        }

        #[test]
        fn what_is_held_is_always_the_longest_proper_prefix(
            stops in prop::collection::vec(small(5), 1..4),
            text in small(24),
        ) {
            let (mut matcher, mut out, mut seen) = (StopMatcher::new(&stops), String::new(), String::new());
            for c in text.chars() {
                seen.push(c);
                if matcher.push(&c.to_string(), &mut out) { break; }
                let longest = (0..=seen.len()).filter(|&i| seen.is_char_boundary(i)).map(|i| &seen[i..])
                    .find(|s| stops.iter().any(|stop| stop.len() > s.len() && stop.starts_with(s))).unwrap_or("");
                prop_assert_eq!(matcher.held(), longest);
            }
        }
    }
}
