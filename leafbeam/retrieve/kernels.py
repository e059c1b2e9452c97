"""The loops over all items of an item memory.

Shapes: N items, C terms of all texts, T terms, h items of a history, k items, M similar texts, P texts by term.
"""

# numba has no types.
# pyright: basic, reportCallIssue=false
import numpy as np

from leafbeam.jit import njit


@njit(cache=True, nogil=True)
def text_scores(indptr_N1, terms_C, weights_C, rows_h, weights_h, num_terms, allowed_N, out_N):
    """Add up, for each allowed item, the cosines of its text with the texts of the history's items. An item is not
    compared with itself.

    query = weighted sum of the history's unit vectors; score of an item = its unit vector * query
    """
    query_T = np.zeros(num_terms, np.float32)
    for at in range(rows_h.size):
        length = _length(indptr_N1, weights_C, rows_h[at])
        for position in range(indptr_N1[rows_h[at]], indptr_N1[rows_h[at] + 1]):
            query_T[terms_C[position]] += weights_h[at] * np.float32(weights_C[position]) / length
    for item in range(indptr_N1.size - 1):
        if allowed_N[item]:
            product, squares = np.float32(0), np.float32(0)
            for position in range(indptr_N1[item], indptr_N1[item + 1]):
                weight = np.float32(weights_C[position])
                product += weight * query_T[terms_C[position]]
                squares += weight * weight
            out_N[item] = product / np.sqrt(squares) if product > 0 else np.float32(0)
    for item in rows_h:  # again, without the item itself
        if allowed_N[item]:
            score = np.float32(0)
            for at in range(rows_h.size):
                if rows_h[at] != item:
                    score += weights_h[at] * _cosine(indptr_N1, terms_C, weights_C, rows_h[at], item)
            out_N[item] = score


@njit(cache=True, nogil=True)
def cosines(indptr_N1, terms_C, weights_C, rows_h, rows_k):
    """Return the cosine of each of some items' texts with each of some others', float32 (h, k); 0 if one has no text."""
    out_hk = np.zeros((rows_h.size, rows_k.size), np.float32)
    for at in range(rows_h.size):
        for column in range(rows_k.size):
            out_hk[at, column] = _cosine(indptr_N1, terms_C, weights_C, rows_h[at], rows_k[column])
    return out_hk


@njit(cache=True, nogil=True)
def nearest_texts(indptr_N1, terms_C, weights_C, num_terms, max_postings, rows_NM, cosines_NM):
    """Fill in, for each text, the M most similar others and their cosines, largest first; a cosine of 0 ends them.

    The terms of a text are read from the rarest on, through lists of the texts that have each, until `max_postings` are read.
    """
    num_texts, num_nearest = rows_NM.shape
    ends_T, unit_C = np.zeros(num_terms + 1, np.int64), np.empty(terms_C.size, np.float32)
    for row in range(num_texts):
        length = _length(indptr_N1, weights_C, row)
        for entry in range(indptr_N1[row], indptr_N1[row + 1]):
            ends_T[terms_C[entry] + 1] += 1
            unit_C[entry] = np.float32(weights_C[entry]) / length
    ends_T = np.cumsum(ends_T)
    starts_T, fill_T = ends_T[:-1], ends_T[:-1].copy()
    text_P, unit_P = np.empty(terms_C.size, np.int32), np.empty(terms_C.size, np.float32)
    for row in range(num_texts):
        for entry in range(indptr_N1[row], indptr_N1[row + 1]):
            place = fill_T[terms_C[entry]]
            text_P[place], unit_P[place] = row, unit_C[entry]
            fill_T[terms_C[entry]] += 1
    cosine_N, touched_N = np.zeros(num_texts, np.float32), np.empty(num_texts, np.int32)
    for row in range(num_texts):
        begin, end = indptr_N1[row], indptr_N1[row + 1]
        counts = np.empty(end - begin, np.int64)
        for at in range(counts.size):
            counts[at] = fill_T[terms_C[begin + at]] - starts_T[terms_C[begin + at]]
        num_touched, num_read = 0, 0
        for at in np.argsort(counts):
            num_read += counts[at]
            if num_read > max_postings:
                break
            term, unit = terms_C[begin + at], unit_C[begin + at]
            for place in range(starts_T[term], fill_T[term]):
                text = text_P[place]
                if cosine_N[text] == 0:
                    touched_N[num_touched] = text
                    num_touched += 1
                cosine_N[text] += unit * unit_P[place]
        cosine_N[row] = 0
        values = np.empty(num_touched, np.float32)
        for at in range(num_touched):
            values[at] = cosine_N[touched_N[at]]
            cosine_N[touched_N[at]] = 0
        largest = np.partition(-values, num_nearest)[num_nearest] if num_touched > num_nearest else np.float32(0)
        kept = np.flatnonzero((-values <= largest) & (values > 0))
        for at, index in enumerate(kept[np.argsort(-values[kept], kind="mergesort")][:num_nearest]):
            rows_NM[row, at], cosines_NM[row, at] = touched_N[index], values[index]


@njit(cache=True, nogil=True)
def _length(indptr_N1, weights_C, row):
    squares = np.float32(0)
    for entry in range(indptr_N1[row], indptr_N1[row + 1]):
        squares += np.float32(weights_C[entry]) * np.float32(weights_C[entry])
    return np.sqrt(squares)


@njit(cache=True, nogil=True)
def _cosine(indptr_N1, terms_C, weights_C, left, right):
    """Return the cosine of two rows. Each row is read once, because its terms ascend."""
    product = np.float32(0)
    i, j, end_i, end_j = indptr_N1[left], indptr_N1[right], indptr_N1[left + 1], indptr_N1[right + 1]
    while i < end_i and j < end_j:
        if terms_C[i] == terms_C[j]:
            product += np.float32(weights_C[i]) * np.float32(weights_C[j])
            i, j = i + 1, j + 1
        elif terms_C[i] < terms_C[j]:
            i += 1
        else:
            j += 1
    if product == 0:
        return product
    return product / (_length(indptr_N1, weights_C, left) * _length(indptr_N1, weights_C, right))


@njit(cache=True, nogil=True)
def allow(words_W, ordinal_N, allowed_N):
    """Mark the items whose ordinal is in a bitmap; an ordinal of -1 means that the item is not in this trie."""
    for item in range(ordinal_N.size):
        ordinal = ordinal_N[item]
        if ordinal >= 0 and (words_W[ordinal >> 6] >> np.uint64(ordinal & 63)) & np.uint64(1):
            allowed_N[item] = True
