package tokenize

import "unicode/utf8"

// clusterClass is what decides about grapheme clusters (Unicode Standard Annex 29, as the unicode-segmentation crate of
// Hugging Face tokenizers has it). Regional indicators have no class: two of them are longer than the clusters that
// matter here (see precompiled).
type clusterClass uint16

const (
	clusterControl      clusterClass = 1 << iota // stands alone, but for CR LF
	clusterJoining                               // Extend, ZWJ or SpacingMark: joins what is before it
	clusterExtend                                // of these, Extend
	clusterPrepend                               // joins what is after it
	clusterPictographic                          // joins another one across Extend* ZWJ
	clusterL                                     // Hangul letters and syllables
	clusterV
	clusterT
	clusterLV
	clusterLVT
	clusterConsonant // joins another one across marks of which one is a linker
	clusterLinker
	clusterConjunct // such a mark; linkers are, too
)

const zeroWidthJoiner = 0x200D

// clusterEnd returns where the grapheme cluster that text, which isn't empty, begins with ends.
func (u *unicodeData) clusterEnd(text []byte) int {
	last, end := utf8.DecodeRune(text)
	before := u.cluster.at(last)
	// The states of the two rules that look further back: \p{Extended_Pictographic} Extend* ZWJ, and a consonant with
	// marks behind it.
	const (
		none = iota
		open // the first character and what may follow it
		done // and the one without which the rest doesn't join
	)
	state := func(class clusterClass, of clusterClass) int {
		if class&of != 0 {
			return open
		}
		return none
	}
	emoji, conjunct := state(before, clusterPictographic), state(before, clusterConsonant)
	for end < len(text) {
		r, size := utf8.DecodeRune(text[end:])
		after := u.cluster.at(r)
		switch {
		case (before|after)&clusterControl != 0:
			if last != '\r' || r != '\n' {
				return end
			}
		case after&clusterJoining != 0, before&clusterPrepend != 0:
		case before&clusterL != 0 && after&(clusterL|clusterV|clusterLV|clusterLVT) != 0:
		case before&(clusterLV|clusterV) != 0 && after&(clusterV|clusterT) != 0:
		case before&(clusterLVT|clusterT) != 0 && after&clusterT != 0:
		case conjunct == done && after&clusterConsonant != 0:
		case emoji == done && after&clusterPictographic != 0:
		default:
			return end
		}
		switch {
		case after&clusterPictographic != 0:
			emoji = open
		case emoji == open && r == zeroWidthJoiner:
			emoji = done
		case emoji != open || after&clusterExtend == 0:
			emoji = none
		}
		switch {
		case after&clusterConsonant != 0:
			conjunct = open
		case after&clusterConjunct == 0:
			conjunct = none
		case conjunct == open && after&clusterLinker != 0:
			conjunct = done
		}
		last, before = r, after
		end += size
	}
	return end
}
