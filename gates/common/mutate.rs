//! Damage to JSON text, as values that proptest can make and shrink: of its structure, where a mutant is still JSON,
//! and of its bytes.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

/// JSON as it is written: keys may stand twice, and a leaf is its text.
#[derive(Clone)]
enum Node {
    Leaf(String),
    List(Vec<Node>),
    /// Keys with their quotes.
    Map(Vec<(String, Node)>),
}

/// One change. Places are counted over all nodes, or all members of objects, in the order of the text.
#[derive(Clone, Debug)]
pub enum Edit {
    /// A node becomes a copy of another.
    Copy(Index, Index),
    /// A node becomes this text.
    Set(Index, String),
    /// A node that is a number is moved by so much.
    Nudge(Index, i64),
    /// A member stands twice, the second time with another node's value.
    Twice(Index, Index),
    Remove(Index),
    Rename(Index, String),
    /// Lists around a node.
    Nest(Index, usize),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
}

/// Numbers at the edges of types, and texts that mean something somewhere or nothing anywhere.
const LEAVES: [&str; 24] = [
    "0",
    "1",
    "-1",
    "3",
    "1e999",
    "0.5",
    "-0.0",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"full_attention\"",
    "\"BF16\"",
    "\"\\u0000\\n\\u202e\"",
    "\"../../a.safetensors\"",
];

const KEYS: [&str; 8] = [
    "\"\"",
    "\"__metadata__\"",
    "\"weight_map\"",
    "\"model.embed_tokens.weight\"",
    "\"model.vision_tower.x\"",
    "\"\\n\"",
    "\"quantization_config\"",
    "\"5\"",
];

pub fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    prop_oneof![
        2 => (place(), place()).prop_map(|(to, from)| Edit::Copy(to, from)),
        4 => (place(), prop::sample::select(&LEAVES[..])).prop_map(|(at, leaf)| Edit::Set(at, leaf.to_owned())),
        6 => (place(), prop_oneof![-2i64..3, -70_000i64..70_000]).prop_map(|(at, by)| Edit::Nudge(at, by)),
        2 => (place(), place()).prop_map(|(at, from)| Edit::Twice(at, from)),
        2 => place().prop_map(Edit::Remove),
        1 => (place(), prop::sample::select(&KEYS[..])).prop_map(|(at, key)| Edit::Rename(at, key.to_owned())),
        1 => (place(), prop_oneof![1usize..4, 100usize..200, Just(50_000)]).prop_map(|(at, n)| Edit::Nest(at, n)),
        1 => (place(), 1u8..).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        1 => place().prop_map(Edit::Cut),
        1 => (place(), prop::collection::vec(any::<u8>(), 1..4)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
    ]
}

/// The text after the edits, in their order. An edit of structure leaves alone what an edit of bytes has made no JSON.
pub fn apply(text: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut text = text.to_vec();
    for edit in edits {
        match edit {
            Edit::Flip(at, bits) if !text.is_empty() => {
                let at = at.index(text.len());
                text[at] ^= bits;
            }
            Edit::Cut(at) => text.truncate(at.index(text.len() + 1)),
            Edit::Insert(at, bytes) => {
                let at = at.index(text.len() + 1);
                text.splice(at..at, bytes.iter().copied());
            }
            edit => {
                if let Ok(value) = serde_json::from_slice::<Value>(&text) {
                    let mut node = Node::of(&value);
                    restructure(&mut node, edit);
                    text.clear();
                    node.write(&mut text);
                }
            }
        }
    }
    text
}

fn restructure(root: &mut Node, edit: &Edit) {
    match edit {
        Edit::Copy(to, from) => {
            let copy = root.nth(from).clone();
            *root.nth(to) = copy;
        }
        Edit::Set(at, leaf) => *root.nth(at) = Node::Leaf(leaf.clone()),
        Edit::Nudge(at, by) => {
            let number = |node: &Node| match node {
                Node::Leaf(text) => text.parse::<i64>().ok(),
                _ => None,
            };
            let mut count = 0;
            root.each(&mut |node| count += usize::from(number(node).is_some()));
            let mut left = at.index(count.max(1)) as isize;
            root.each(&mut |node| {
                if let Some(n) = number(node) {
                    if left == 0 {
                        *node = Node::Leaf(n.wrapping_add(*by).to_string());
                    }
                    left -= 1;
                }
            });
        }
        Edit::Nest(at, depth) => {
            let node = root.nth(at);
            let mut text = Vec::new();
            node.write(&mut text);
            let inner = String::from_utf8_lossy(&text);
            *node = Node::Leaf(format!("{}{inner}{}", "[".repeat(*depth), "]".repeat(*depth)));
        }
        Edit::Twice(at, from) => {
            let copy = root.nth(from).clone();
            root.member(at, |members, i| {
                let key = members[i].0.clone();
                members.push((key, copy));
            });
        }
        Edit::Remove(at) => root.member(at, |members, i| drop(members.remove(i))),
        Edit::Rename(at, key) => root.member(at, |members, i| members[i].0 = key.clone()),
        Edit::Flip(..) | Edit::Cut(..) | Edit::Insert(..) => {}
    }
}

impl Node {
    fn of(value: &Value) -> Node {
        match value {
            Value::Array(list) => Node::List(list.iter().map(Node::of).collect()),
            Value::Object(map) => {
                Node::Map(map.iter().map(|(k, v)| (Value::from(k.as_str()).to_string(), Node::of(v))).collect())
            }
            leaf => Node::Leaf(leaf.to_string()),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let comma = |out: &mut Vec<u8>, i: usize| {
            if i > 0 {
                out.push(b',');
            }
        };
        match self {
            Node::Leaf(text) => out.extend_from_slice(text.as_bytes()),
            Node::List(list) => {
                out.push(b'[');
                for (i, node) in list.iter().enumerate() {
                    comma(out, i);
                    node.write(out);
                }
                out.push(b']');
            }
            Node::Map(members) => {
                out.push(b'{');
                for (i, (key, node)) in members.iter().enumerate() {
                    comma(out, i);
                    out.extend_from_slice(key.as_bytes());
                    out.push(b':');
                    node.write(out);
                }
                out.push(b'}');
            }
        }
    }

    fn each(&mut self, f: &mut impl FnMut(&mut Node)) {
        f(self);
        match self {
            Node::Leaf(_) => {}
            Node::List(list) => list.iter_mut().for_each(|node| node.each(f)),
            Node::Map(members) => members.iter_mut().for_each(|(_, node)| node.each(f)),
        }
    }

    /// The chosen one of all nodes.
    fn nth(&mut self, at: &Index) -> &mut Node {
        let mut count = 0;
        self.each(&mut |_| count += 1);
        let mut left = at.index(count);
        self.descend(&mut left).expect("counted")
    }

    fn descend(&mut self, left: &mut usize) -> Option<&mut Node> {
        if *left == 0 {
            return Some(self);
        }
        *left -= 1;
        match self {
            Node::Leaf(_) => None,
            Node::List(list) => list.iter_mut().find_map(|node| node.descend(left)),
            Node::Map(members) => members.iter_mut().find_map(|(_, node)| node.descend(left)),
        }
    }

    /// Calls `f` with the chosen one of all members, as its object's members and an index.
    fn member(&mut self, at: &Index, f: impl FnOnce(&mut Vec<(String, Node)>, usize)) {
        let mut count = 0;
        self.each(&mut |node| {
            if let Node::Map(members) = node {
                count += members.len();
            }
        });
        if count == 0 {
            return;
        }
        let (mut left, mut f) = (at.index(count), Some(f));
        self.each(&mut |node| {
            let Node::Map(members) = node else { return };
            if left < members.len()
                && let Some(f) = f.take()
            {
                f(members, left);
            }
            left = left.saturating_sub(members.len());
        });
    }
}
