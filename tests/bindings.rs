//! The checked-in Rust bindings of `csrc/gemma4_kernels.h` are what the pinned bindgen makes of it today.

use std::path::Path;

fn generated() -> String {
    bindgen::Builder::default()
        .header(concat!(env!("CARGO_MANIFEST_DIR"), "/csrc/gemma4_kernels.h"))
        .allowlist_type("G4.*")
        .allowlist_var("G4_.*")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .prepend_enum_name(false)
        .derive_default(false)
        .derive_debug(true)
        .layout_tests(true)
        .disable_header_comment()
        .generate_comments(false)
        .generate()
        .expect("bindgen reads the header")
        .to_string()
}

#[test]
fn the_bindings_are_what_bindgen_makes_of_the_header() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/model/kernels/bindings.rs");
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        println!("skipped: no libclang here, so names, sizes and offsets rest on the compile-time assertions alone");
        return;
    }
    let want = generated();
    if !path.exists() {
        std::fs::write(&path, &want).expect("bindings are writable");
    }
    let have = std::fs::read_to_string(&path).expect("bindings are readable");
    let lines = |s: &str| s.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect::<Vec<_>>();
    let (have, want) = (lines(&have), lines(&want));
    for (i, (h, w)) in have.iter().zip(&want).enumerate() {
        assert_eq!(h, w, "line {i}: delete src/model/kernels/bindings.rs and run this test again to regenerate it");
    }
    assert_eq!(have.len(), want.len());
}
