from array import array

import pytest

from penstock.cache.prefix import PrefixIndex, next_key, root_key


def test_keys_depend_on_everything_before() -> None:
    a, b = array("i", [1, 2]), array("i", [3, 4])
    root = root_key("")
    keys = {
        next_key(next_key(root, a), b),
        next_key(next_key(root, b), a),
        next_key(next_key(root, a), a),
        next_key(next_key(root_key("salt"), a), b),
        next_key(root, array("i", [1, 2, 3, 4])),
    }
    assert len(keys) == 5
    assert next_key(root, array("i", [1, 2])) == next_key(root_key(""), a)


def test_roots_tell_salts_apart() -> None:
    salts = ["", "a", "abc", "é", "\0", "a\0"]
    assert len({root_key(salt) for salt in salts}) == len(salts)


def test_the_first_block_of_a_key_stays() -> None:
    index = PrefixIndex()
    index.publish(b"k", 3)
    index.publish(b"k", 5)
    assert index.find(b"k") == 3
    assert 5 not in index
    index.drop(5)  # unknown: nothing happens
    assert index.find(b"k") == 3
    index.drop(3)
    assert index.find(b"k") is None
    index.publish(b"k", 5)
    assert index.find(b"k") == 5
    index.check_integrity()


def test_integrity_check_notices_corruption() -> None:
    index = PrefixIndex()
    index.publish(b"k", 3)
    index._keys[3] = b"other"
    with pytest.raises(AssertionError):
        index.check_integrity()
