//! Thread-local read buffer. It saves allocating and zeroing a buffer for each block.

use std::cell::RefCell;

/// Maximum size in bytes of a buffer that a thread keeps. Longer blocks get a temporary buffer.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `read` with a buffer of `bytes` bytes, whose contents are unspecified. Calls may be nested.
pub(crate) fn with_read_buffer<R>(bytes: usize, read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = match bytes {
        // A nested call finds no buffer and allocates a new one.
        ..=KEPT_BYTES_MAX => BUFFER.try_with(RefCell::take).unwrap_or_default(),
        _ => Vec::new(),
    };
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    let result = read(&mut buffer[..bytes]);
    if buffer.len() <= KEPT_BYTES_MAX {
        // The access fails while the thread exits, because the thread-local variable has been destroyed. The buffer is
        // then freed.
        let _ = BUFFER.try_with(|kept| kept.replace(buffer));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_bytes() -> usize {
        BUFFER.with_borrow(Vec::len)
    }

    #[test]
    fn read_buffer_is_kept_up_to_the_limit() {
        with_read_buffer(100, |buffer| assert_eq!(buffer.len(), 100));
        with_read_buffer(30, |buffer| assert_eq!(buffer.len(), 30));
        assert_eq!(kept_bytes(), 100);
        let longer = KEPT_BYTES_MAX + 1;
        with_read_buffer(longer, |buffer| assert_eq!(buffer.len(), longer));
        assert_eq!(kept_bytes(), 100);
    }

    #[test]
    fn read_buffer_nested_call_gets_another_buffer() {
        with_read_buffer(10, |outer| {
            outer.fill(1);
            with_read_buffer(20, |inner| inner.fill(2));
            assert_eq!(outer, [1; 10]);
        });
    }
}
