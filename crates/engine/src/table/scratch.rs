//! A buffer of each thread to read blocks into: memory that a system call is about to fill need be
//! neither taken anew nor set to zero for each of them.

use std::cell::RefCell;

/// Longer blocks get a buffer of their own, so that no thread holds on to much.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends `use_it` a buffer of this length, with anything in it.
pub(crate) fn with<R>(bytes: usize, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = match bytes {
        // What is taken out is nobody else's, should `use_it` come here again.
        ..=KEPT_BYTES_MAX => BUFFER.try_with(RefCell::take).unwrap_or_default(),
        _ => Vec::new(),
    };
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    let result = use_it(&mut buffer[..bytes]);
    if buffer.len() <= KEPT_BYTES_MAX {
        // A thread that is ending keeps nothing.
        let _ = BUFFER.try_with(|kept| kept.replace(buffer));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        BUFFER.with_borrow(Vec::len)
    }

    #[test]
    fn a_buffer_is_kept_unless_it_is_long() {
        with(100, |buffer| assert_eq!(buffer.len(), 100));
        with(30, |buffer| assert_eq!(buffer.len(), 30));
        assert_eq!(kept(), 100);
        with(KEPT_BYTES_MAX + 1, |buffer| assert_eq!(buffer.len(), KEPT_BYTES_MAX + 1));
        assert_eq!(kept(), 100);
    }

    #[test]
    fn buffers_in_use_at_once_are_not_the_same() {
        with(10, |outer| {
            outer.fill(1);
            with(20, |inner| inner.fill(2));
            assert_eq!(outer, [1; 10]);
        });
    }
}
