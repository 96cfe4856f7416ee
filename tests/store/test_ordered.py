"""A map on several threads: results in order, not far ahead, errors where they belong."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from hardmine.store.ordered import in_order_on


def blas_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.mark.parametrize("threads", [1, 4])
def test_results_come_in_order_and_products_keep_to_one_thread(threads):
    before = blas_threads()
    ran_on = set()

    def late(i):
        time.sleep(0.002 * (7 - i % 7))
        ran_on.add(threading.get_ident())
        return i * i

    with in_order_on(threads) as every:
        assert list(every(late, range(30))) == [i * i for i in range(30)]
        assert blas_threads() == {1}
    assert blas_threads() == before
    assert (threading.get_ident() in ran_on) == (threads == 1)


def test_it_waits_for_what_is_taken():
    started = []
    with in_order_on(2) as every:
        results = iter(every(started.append, range(100)))
        next(results)
        time.sleep(0.05)
        assert len(started) <= 5
        results.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_where_its_result_would(threads):
    def fail(i):
        if i == 5:
            raise KeyError(i)
        return i

    taken = []

    def take_all():
        with in_order_on(threads) as every:
            for i in every(fail, range(20)):
                taken.append(i)

    with pytest.raises(KeyError):
        take_all()
    assert taken == [0, 1, 2, 3, 4]
