//! Checks records as text: every template token, and that keys and values can be read back from
//! their JSON.

use tierlog_core::records::columns::{BinaryParts, Records};
use tierlog_core::records::decode_records;
use tierlog_core::records::text::{Strings, TextRows, Token};

use super::records::{fields, options, value};

/// Formats the records of `data` and reads keys and values back from their JSON.
pub fn check_text(data: &[u8]) {
    let Ok(records) = decode_records(data, 0, &options()) else { return };
    if records.offset.is_empty() {
        return;
    }
    let mut buffers = vec![data];
    buffers.extend(records.opened.iter().map(Vec::as_slice));
    let lines = [Token::JsonKey, Token::Literal(vec![b'\n']), Token::JsonValue, newline()];
    let text = format(&records, &buffers, &lines);
    let mut lines = text.split(|&byte| byte == b'\n');
    for row in 0..records.offset.len() {
        for column in [&records.keys, &records.values] {
            let line = lines.next().unwrap_or_default();
            assert_eq!(from_json(line), value(column, row, &buffers), "row {row}");
        }
    }
    assert_eq!(lines.next(), Some(&b""[..]));
    assert_eq!(lines.next(), None);

    let template = [
        Token::Offset,
        newline(),
        Token::Timestamp,
        newline(),
        Token::TimestampType,
        newline(),
        Token::KeySize,
        newline(),
        Token::ValueSize,
        newline(),
    ];
    let text = format(&records, &buffers, &template);
    let words: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    for (row, words) in words.chunks_exact(template.len() / 2).enumerate() {
        assert_eq!(words[0], records.offset[row].to_string().as_bytes());
        assert_eq!(words[1], records.timestamp_ms[row].to_string().as_bytes());
        assert!([&b"create"[..], b"logappend", b"unknown"].contains(&words[2]));
        for (word, column) in words[3..].iter().zip([&records.keys, &records.values]) {
            let size = value(column, row, &buffers).map_or(-1, |value| value.len() as i64);
            assert_eq!(*word, size.to_string().as_bytes());
        }
    }
    let raw = [Token::Value, Token::Key, Token::Headers, Token::ValueSizeBinary];
    format(&records, &buffers, &raw);
    let json = format(&records, &buffers, &[Token::JsonHeaders]);
    assert!(str::from_utf8(&json).is_ok() && json.iter().all(|&byte| byte >= b' '));
}

fn newline() -> Token {
    Token::Literal(vec![b'\n'])
}

/// Returns the text of all records, made in two calls.
fn format(records: &Records, buffers: &[&[u8]], template: &[Token]) -> Vec<u8> {
    let types = fields(&records.batches).timestamp_types();
    let headers = &records.headers;
    let rows = TextRows {
        offset: &records.offset,
        timestamp_ms: &records.timestamp_ms,
        keys: strings(&records.keys),
        values: strings(&records.values),
        first_string: 0,
        header_ends: headers.list_offsets.as_deref(),
        header_keys: strings(&headers.keys),
        header_values: strings(&headers.values),
        buffers,
        batch_starts: &records.batch_starts,
        timestamp_types: &types,
    };
    let mut out = Vec::new();
    let first = rows.append(template, 0, 1, &mut out);
    let next = first.and_then(|first| rows.append(template, first, usize::MAX, &mut out));
    assert_eq!(next, Some(records.offset.len()));
    out
}

fn strings(column: &BinaryParts) -> Strings<'_> {
    Strings { views: &column.views, validity: column.validity.as_deref() }
}

/// Returns the bytes that a JSON text stands for; `None` is null.
fn from_json(text: &[u8]) -> Option<Vec<u8>> {
    if text == b"null" {
        return None;
    }
    if let Some(rest) = text.strip_prefix(b"{\"base64\":\"") {
        let Some(digits) = rest.strip_suffix(b"\"}") else { panic!("no end of base64") };
        let bytes = from_base64(digits);
        assert!(str::from_utf8(&bytes).is_err(), "base64 of valid UTF-8");
        return Some(bytes);
    }
    let inner = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let Some(mut rest) = inner else { panic!("no JSON string: {text:?}") };
    let mut bytes = Vec::new();
    while let Some((&byte, after)) = rest.split_first() {
        assert!(byte >= b' ' && byte != b'"', "byte {byte} is not escaped");
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some((&escape, after)) = rest.split_first() else { panic!("no escape") };
        rest = after;
        bytes.push(match escape {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let digits = str::from_utf8(&rest[..4]).unwrap_or_default();
                rest = &rest[4..];
                u8::from_str_radix(digits, 16).unwrap_or_default()
            }
            _ => escape,
        });
    }
    Some(bytes)
}

fn from_base64(text: &[u8]) -> Vec<u8> {
    assert!(text.len().is_multiple_of(4));
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("byte {byte} in base64"),
    };
    let mut bytes = Vec::new();
    for group in text.chunks_exact(4) {
        let digits = group.iter().take_while(|&&byte| byte != b'=').count();
        let bits =
            group[..digits].iter().fold(0_u32, |bits, &byte| bits << 6 | u32::from(digit(byte)));
        let whole = (bits << (6 * (4 - digits))).to_be_bytes();
        bytes.extend_from_slice(&whole[1..digits]);
    }
    bytes
}
