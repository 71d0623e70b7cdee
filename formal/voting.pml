/*
 * The voting, timeout and commit rules of Parley's consensus (Jolteon), as `safety.py` and `forest.py` state them.
 *
 * There is no network here. What was signed is a set that only grows, and whoever acts may know any part of it; so every
 * order, loss and delay of messages is covered, and every leader scheme: any proposal with valid certificates may exist.
 * formal/README.md says what each mode explores and why nothing is lost. Parameters, all by -D:
 *
 *   V       views 1..V               BYZ   Byzantine members of the four: 1 is within the promise, 2 is beyond it
 *   DEPTH   2 or 3 certified blocks of consecutive views make the first of them final
 *   SEEK    which invariants to check: 1 one certified block a view, 2 certified blocks extend final ones, 4 no fork
 *   mode    (none)   steps that bring the adversary nothing are left out, views in any order
 *           ORDERED  the same, view after view
 *           LITERAL  every signature is a step of its own, proposals may be nonsense
 *   STEPS   stop after so many steps and print what the rules allow next (for random simulation)
 *   rules to break, see below: PARENT_ONLY_COMMIT NO_TC_CHECK NO_LOCK VOTE_TWICE VOTE_AFTER_TIMEOUT
 *           TIMEOUT_BEHIND_VOTE TIMEOUT_ANYWHERE
 */

#ifndef V
#define V 4
#endif
#ifndef BYZ
#define BYZ 1
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef SEEK
#define SEEK 7
#endif

#if defined(NO_TC_CHECK) || defined(NO_LOCK) || defined(VOTE_TWICE) || defined(VOTE_AFTER_TIMEOUT) \
	|| defined(TIMEOUT_BEHIND_VOTE) || defined(TIMEOUT_ANYWHERE)
#define BROKEN
#endif

#define N 4
#define Q 3
#define H (N - BYZ)		/* members 0..H-1 are honest */
#define NEED (Q - BYZ)		/* honest signatures that a certificate needs */
#define ALL ((1 << N) - 1)
#define LIARS (ALL - ((1 << H) - 1))

/* Two blocks a view are no restriction: a certificate needs NEED of H honest votes, and each of them is cast once. */
#define SLOTS (2 * V)
#define SLOT(v) (2 * (v) - 1)
#define VIEW(b) (((b) + 1) / 2)	/* block 0 is genesis, of view 0 */
#define SIBLING(b) (((b) % 2 == 1) -> (b) + 1 : (b) - 1)

#define COUNT(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1) + (((m) >> 3) & 1))
#define CERTIFIED(b) (COUNT(votes[b]) >= Q)
#define CERTIFIED_VIEW(v) ((v) == 0 || CERTIFIED(SLOT(v)) || CERTIFIED(SLOT(v) + 1))

/* -- the record of an honest member -------------------------------------------------------------------------------- */

byte voted[H];			/* last_voted_view */
byte gaveup[H];			/* highest_timeout_view */
byte lock[H];			/* one_chain_view */

/* -- what was signed ----------------------------------------------------------------------------------------------- */

byte votes[SLOTS + 1];		/* by block: who voted, as bits. Without LITERAL honest bits only count, from the lowest */
byte parent[SLOTS + 1];
#ifdef LITERAL
byte exists[SLOTS + 1];
byte tc_view[SLOTS + 1];	/* of the TC in the header, 0: none */
byte tc_high[SLOTS + 1];	/* its highest QC view */
byte claim[N * (V + 1)];	/* by view and member: 1 + the QC view in its timeout, 0: none */
#else
byte claim[NEED * (V + 1)];	/* by view: 1 + the lowest QC views in honest timeouts, rising, 0: none */
#endif
int final;			/* blocks that head a run of DEPTH, as bits */
byte violated;

/* -- the rules of safety.py ---------------------------------------------------------------------------------------- */

/* SafetyRules._is_safe; j: the view of the justify QC, t: the view of the TC or 0, h: the highest QC view in it */
#ifdef VOTE_TWICE
#define VOTED_BEFORE(r, v) false
#else
#define VOTED_BEFORE(r, v) ((v) <= voted[r])
#endif
#ifdef VOTE_AFTER_TIMEOUT
#define GAVE_UP(r, v) false
#else
#define GAVE_UP(r, v) ((v) <= gaveup[r])
#endif
#ifdef NO_TC_CHECK
#define SEEN_BY_TC(j, h) true
#else
#define SEEN_BY_TC(j, h) ((j) >= (h))
#endif
#define MAY_SIGN(r, v) (!VOTED_BEFORE(r, v) && !GAVE_UP(r, v))
#define EXTENDS(v, j, t, h) ((v) == (j) + 1 || ((t) != 0 && (v) == (t) + 1 && SEEN_BY_TC(j, h)))

/* SafetyRules.timeout; c: the view of high_qc, t: the view of high_tc or 0 */
#ifdef TIMEOUT_BEHIND_VOTE
#define BEHIND_VOTE(r, v) false
#else
#define BEHIND_VOTE(r, v) ((v) < voted[r])
#endif
#ifdef NO_LOCK
#define LOCK(r) 0
#else
#define LOCK(r) lock[r]
#endif
#ifdef TIMEOUT_ANYWHERE
#define ENTERED(v, c, t) ((c) < (v))
#else
#define ENTERED(v, c, t) ((c) + 1 == (v) || ((c) + 1 < (v) && (t) != 0 && (t) + 1 == (v)))
#endif
#define MAY_TIME_OUT(r, v, c, t) \
	((v) > gaveup[r] && !BEHIND_VOTE(r, v) && (c) >= LOCK(r) && ENTERED(v, c, t))

/* -- the rule of forest.py ----------------------------------------------------------------------------------------- */

#ifdef PARENT_ONLY_COMMIT
#define CONSECUTIVE(b) true
#else
#define CONSECUTIVE(b) (VIEW(parent[b]) + 1 == VIEW(b))
#endif

/* -- invariants, checked whenever a block gets its last vote --------------------------------------------------------- */

byte at, head, length, i, other;	/* scratch, 0 between steps */

/* Afterwards `at` is f if f is c or an ancestor of it, else 0. */
inline walk(c, f) {
	at = c;
	do
	:: at != f && at != 0 -> at = parent[at]
	:: else -> break
	od
}

inline violate(what) {
	violated = violated | (what & SEEK)
}

inline on_certified(b) {
	printf("qc b=%d\n", b);
	if
	:: CERTIFIED(SIBLING(b)) -> violate(1)
	:: else
	fi;
	head = b;
	length = 1;
	do
	:: length < DEPTH && head != 0 && CONSECUTIVE(head) -> head = parent[head]; length++
	:: else -> break
	od;
	if
	:: length == DEPTH && head != 0 -> on_final(head)
	:: else
	fi;
	i = 1;
	do
	:: i <= SLOTS ->
		if
		:: ((final >> i) & 1) && VIEW(i) < VIEW(b) ->
			walk(b, i);
			if
			:: at != i -> violate(2)
			:: else
			fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0; at = 0; length = 0; head = 0; other = 0
}

inline on_final(f) {
	printf("commit b=%d\n", f);
	final = final | (1 << f);
	i = 1;
	do
	:: i <= SLOTS ->
		if
		:: CERTIFIED(i) && VIEW(i) > VIEW(f) ->
			walk(i, f);
			if
			:: at != f -> violate(2)
			:: else
			fi
		:: else
		fi;
		if
		:: (final >> i) & 1 ->
			walk(i, f);
			other = at;
			walk(f, i);
			if
			:: other != f && at != i -> violate(4)
			:: else
			fi
		:: else
		fi;
		i++
	:: else -> break
	od
}

inline note_vote(r, v, p) {
	voted[r] = v;
	if
	:: VIEW(p) > lock[r] -> lock[r] = VIEW(p)
	:: else
	fi
}

#ifdef LITERAL
/* ==================================================================================================================== */
/* Every signature is a step. Liars vote for anything, time out with any claim, propose any block with any certificates. */
/* ==================================================================================================================== */

#define SIGNED(w, m) (((m) & 1) * (claim[N * (w)] != 0) + (((m) >> 1) & 1) * (claim[N * (w) + 1] != 0) \
	+ (((m) >> 2) & 1) * (claim[N * (w) + 2] != 0) + (((m) >> 3) & 1) * (claim[N * (w) + 3] != 0))
#define TC(w) (SIGNED(w, ALL) >= Q)

byte r, v, b, p, c, t, m;

#ifdef STEPS
int steps, tries;
#define MAY_CLAIM(r, v, c) (claim[N * (v) + (r)] == 0)	/* once is enough for a walk */
#define stepped() steps++
#define GO (!violated && steps < STEPS && tries < 40 * STEPS)
#define clear() r = 0; v = 0; b = 0; p = 0; c = 0; t = 0; m = 0; tries++
#else
#define MAY_CLAIM(r, v, c) (claim[N * (v) + (r)] != (c) + 1)
#define stepped() skip
#define GO (!violated)
#define clear() r = 0; v = 0; b = 0; p = 0; c = 0; t = 0; m = 0
#endif

inline pick(x, low, high) {
	x = low;
	do
	:: x < (high) -> x++
	:: break
	od;
	skip
}

/* t: a TC view or 0, m: its signers. Afterwards c is its highest QC view. */
inline pick_tc() {
	pick(t, 0, V);
	if
	:: t != 0 ->
		if
		:: m = ALL
		:: m = ALL - 1
		:: m = ALL - 2
		:: m = ALL - 4
		:: m = ALL - 8
		fi;
		d_step {
			c = 0;
			i = 0;
			do
			:: i < N ->
				if
				:: ((m >> i) & 1) && claim[N * t + i] > c + 1 -> c = claim[N * t + i] - 1
				:: else
				fi;
				i++
			:: else -> break
			od;
			i = 0
		}
	:: else
	fi
}

/* Without `nonsense` only what an honest member might vote for: the rest brings the adversary nothing. */
inline propose(nonsense) {
	pick(v, 1, V);
	pick(p, 0, SLOTS);
	pick_tc();
	d_step {
		b = (exists[SLOT(v)] -> SLOT(v) + 1 : SLOT(v));
		if
		:: !exists[b] && p != b && CERTIFIED(p) && (t == 0 || SIGNED(t, m) == COUNT(m)) &&
			(nonsense || (VIEW(p) < v && (t == 0 || VIEW(p) + 1 < v) && EXTENDS(v, VIEW(p), t, c))) &&
			(!nonsense || b != SLOT(v)) ->
			printf("propose b=%d view=%d parent=%d tc=%d by=%d\n", b, v, p, t, m);
			exists[b] = 1;
			parent[b] = p;
			tc_view[b] = t;
			tc_high[b] = c;
			stepped()
		:: else
		fi
	}
}

inline sign_vote() {
	pick(r, 0, N - 1);
	pick(b, 1, SLOTS);
	d_step {
		if
		:: exists[b] && !((votes[b] >> r) & 1) &&
			(r >= H || (MAY_SIGN(r, VIEW(b)) && EXTENDS(VIEW(b), VIEW(parent[b]), tc_view[b], tc_high[b]))) ->
			printf("vote r=%d b=%d\n", r, b);
			votes[b] = votes[b] | (1 << r);
			if
			:: r < H -> note_vote(r, VIEW(b), parent[b])
			:: else
			fi;
			if
			:: COUNT(votes[b]) == Q -> on_certified(b)
			:: else
			fi;
			stepped()
		:: else
		fi
	}
}

inline sign_timeout() {
	pick(r, 0, N - 1);
	pick(v, 1, V);
	pick(c, 0, V);
	d_step {
		t = (v > 1 && TC(v - 1) -> v - 1 : 0);
		if
		:: c < v && CERTIFIED_VIEW(c) && MAY_CLAIM(r, v, c) && (r >= H || MAY_TIME_OUT(r, v, c, t)) ->
			printf("timeout r=%d view=%d qc=%d\n", r, v, c);
			claim[N * v + r] = c + 1;
			if
			:: r < H && v > gaveup[r] -> gaveup[r] = v
			:: else
			fi;
			stepped()
		:: else
		fi
	}
}

active proctype everybody() {
	votes[0] = ALL;
	do
	:: atomic { GO -> propose(false); clear() }
	:: atomic { GO -> sign_vote(); clear() }
	:: atomic { GO -> sign_timeout(); clear() }
#ifdef STEPS
	/* A walk that votes more often than it gives up gets further. */
	:: atomic { GO -> propose(false); clear() }
	:: atomic { GO -> propose(false); clear() }
	:: atomic { GO -> propose(true); clear() }
	:: atomic { GO -> sign_vote(); clear() }
	:: atomic { GO -> sign_vote(); clear() }
	:: atomic { GO -> sign_vote(); clear() }
#endif
	:: else -> break
	od;
	skip;
	/* What the rules allow next; all else they refuse. */
	d_step {
		r = 0;
		do
		:: r < H ->
			b = 1;
			do
			:: b <= SLOTS ->
				if
				:: exists[b] && MAY_SIGN(r, VIEW(b)) &&
					EXTENDS(VIEW(b), VIEW(parent[b]), tc_view[b], tc_high[b]) ->
					printf("may vote r=%d b=%d\n", r, b)
				:: else
				fi;
				b++
			:: else -> break
			od;
			v = 1;
			do
			:: v <= V ->
				c = 0;
				do
				:: c <= V ->
					t = 0;
					do
					:: t <= V ->
						if
						:: CERTIFIED_VIEW(c) && (t == 0 || TC(t)) && MAY_TIME_OUT(r, v, c, t) ->
							printf("may timeout r=%d view=%d qc=%d tc=%d\n", r, v, c, t)
						:: else
						fi;
						t++
					:: else -> break
					od;
					c++
				:: else -> break
				od;
				v++
			:: else -> break
			od;
			r++
		:: else -> break
		od;
		printf("end violated=%d\n", violated)
	}
	assert(!violated)
}

#else
/* ==================================================================================================================== */
/* Liars have signed everything that could ever help; honest members take only the steps that could. README: reductions. */
/* ==================================================================================================================== */

/* The best TC for the adversary: the liars claim view 0, and of the honest the lowest claims count. */
#define TC(w) (claim[NEED * (w) + NEED - 1] != 0)
#define HIGH(w) (claim[NEED * (w) + NEED - 1] - 1)
#define OPEN(v, p) (CERTIFIED(p) && EXTENDS(v, VIEW(p), (TC((v) - 1) -> (v) - 1 : 0), HIGH((v) - 1)))

/* A vote helps if it founds a block or if its block is not certified yet. */
#define MAY_FOUND(r, v, p) (MAY_SIGN(r, v) && votes[SLOT(v) + 1] == 0 && OPEN(v, p))
#define MAY_JOIN(r, b) (votes[b] != 0 && !CERTIFIED(b) && MAY_SIGN(r, VIEW(b)))

/* A timeout helps if it lowers the best TC of its view; the lowest claim that is allowed helps most. */
#ifdef TIMEOUT_ANYWHERE
#define CLAIM(r, v) LOCK(r)
#else
#define CLAIM(r, v) (TC((v) - 1) -> LOCK(r) : (v) - 1)
#endif
#define HELPS(v, c) ((v) < V && (claim[NEED * (v) + NEED - 1] == 0 || (c) + 1 < claim[NEED * (v) + NEED - 1]))
#define MAY_GIVE_UP(r, v) (MAY_TIME_OUT(r, v, CLAIM(r, v), (TC((v) - 1) -> (v) - 1 : 0)) \
	&& CERTIFIED_VIEW(CLAIM(r, v)) && HELPS(v, CLAIM(r, v)))

/* Honest members are interchangeable: records are kept in order, and of equal ones the first acts. */
#define RECORD(r) ((voted[r] * 16 + gaveup[r]) * 16 + lock[r])
#define ACTS(r) (!violated && ((r) == 0 || RECORD(r) != RECORD((r) - 1)))

byte r, v, b, p, c, turn;
#define FOUND(r_, v_, p_) :: ACTS(r_) && MAY_FOUND(r_, v_, p_) -> d_step { r = r_; v = v_; p = p_; b = 0; c = 0 }
#define JOIN(r_, b_) :: ACTS(r_) && MAY_JOIN(r_, b_) -> d_step { r = r_; v = VIEW(b_); p = parent[b_]; b = b_; c = 0 }
#define GIVE_UP(r_, v_) :: ACTS(r_) && MAY_GIVE_UP(r_, v_) -> d_step { r = r_; v = v_; c = 1 + CLAIM(r_, v_) }

inline sign_vote() {
	if
	:: b == 0 ->
		b = (votes[SLOT(v)] == 0 -> SLOT(v) : SLOT(v) + 1);
		parent[b] = p;
		votes[b] = LIARS;
		printf("propose b=%d view=%d parent=%d tc=%d by=%d\n", b, v, p, (v == VIEW(p) + 1 -> 0 : v - 1), 0);
		i = H;
		do
		:: i < N -> printf("vote r=%d b=%d\n", i, b); i++
		:: else -> break
		od
	:: else
	fi;
	printf("vote r=%d b=%d\n", r, b);
	votes[b] = LIARS | (((votes[b] - LIARS) << 1) | 1);
	note_vote(r, v, p);
	if
	:: CERTIFIED(b) -> on_certified(b)
	:: else
	fi
}

/* Insert the claim c - 1 among the lowest of view v. */
inline sign_timeout() {
	printf("timeout r=%d view=%d qc=%d\n", r, v, c - 1);
	gaveup[r] = v;
	i = NEED - 1;
	do
	:: i > 0 && (claim[NEED * v + i - 1] == 0 || claim[NEED * v + i - 1] > c) ->
		claim[NEED * v + i] = claim[NEED * v + i - 1];
		i--
	:: else -> break
	od;
	claim[NEED * v + i] = c
}

inline exchange(a, z) {
	if
	:: RECORD(a) < RECORD(z) ->
		printf("swap r=%d with=%d\n", a, z);
		i = voted[a]; voted[a] = voted[z]; voted[z] = i;
		i = gaveup[a]; gaveup[a] = gaveup[z]; gaveup[z] = i;
		i = lock[a]; lock[a] = lock[z]; lock[z] = i
	:: else
	fi
}

#define IDLE(r, v) (!MAY_SIGN(r, v))
#define GONE(r, v) ((v) <= gaveup[r] || (v) < voted[r] || ((v) == V && (v) <= voted[r]))

/* States that allow the same from now on become one state. Holds for the unbroken rules only. */
inline merge() {
	/* Below a vote there is no timeout and no vote, and up to a timeout no vote. */
	if
	:: voted[r] > gaveup[r] + 1 -> gaveup[r] = voted[r] - 1
	:: gaveup[r] > voted[r] -> voted[r] = gaveup[r]
	:: else
	fi;
	/* A block that nobody can join will not be certified; a TC that nobody can use is none. */
	v = 1;
	do
	:: v <= V ->
		if
		:: IDLE(0, v) && IDLE(1, v) && IDLE(H - 1, v) ->
			bury(SLOT(v));
			bury(SLOT(v) + 1);
			i = 0;
			do
			:: i < NEED && GONE(0, v) && GONE(1, v) && GONE(H - 1, v) -> claim[NEED * (v - 1) + i] = 0; i++
			:: else -> break
			od
		:: else
		fi;
		v++
	:: else -> break
	od
}

inline bury(x) {
	if
	:: votes[x] != 0 && !CERTIFIED(x) -> votes[x] = LIARS | 1; parent[x] = 0
	:: else
	fi
}

inline settle() {
#ifndef BROKEN
	merge();
#endif
#if H == 3
	exchange(0, 1);
	exchange(1, 2);
#endif
	exchange(0, 1);
	i = 0; r = 0; v = 0; b = 0; p = 0; c = 0
}

/* All that could be signed in this view is signed: what is below the next view allows the same, whatever it is. */
inline next_view() {
	i = 0;
	do
	:: i < H -> voted[i] = 0; gaveup[i] = 0; i++
	:: else -> break
	od;
	if
	:: !CERTIFIED(SLOT(turn)) && CERTIFIED(SLOT(turn) + 1) ->
		votes[SLOT(turn)] = votes[SLOT(turn) + 1];
		parent[SLOT(turn)] = parent[SLOT(turn) + 1];
		votes[SLOT(turn) + 1] = 0;
		parent[SLOT(turn) + 1] = 0
	:: else
	fi;
	i = SLOT(turn);
	do
	:: i <= SLOT(turn) + 1 ->
		if
		:: !CERTIFIED(i) -> votes[i] = 0; parent[i] = 0
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NEED ->
		claim[NEED * (turn - 1) + i] = 0;
		claim[NEED * turn + i] = claim[NEED * turn + NEED - 1];
		i++
	:: else -> break
	od;
	i = 0;
	turn++;
	settle();
#ifndef BROKEN
	prune();
	renumber();
#endif
	i = 0; b = 0; p = 0; at = 0; head = 0; length = 0; other = 0
}

/* No TC to come shows less than the NEED lowest locks do, so older blocks get no more children: what does not lead to one
   that may is dropped, and so is what all of these have in common. Records are in order, the lowest lock is the last. */
inline prune() {
	i = 0;
	do
	:: i < H ->
		if
		:: lock[i] < lock[H - NEED] -> lock[i] = lock[H - NEED]
		:: else
		fi;
		i++
	:: else -> break
	od;
	/* p will be the newest block that all have in common: genesis, while it may have children itself. */
	p = (lock[H - NEED] == 0 -> 0 : SLOT(turn));
	do
	:: p > 0 ->
		p--;
		i = SLOT(turn) - 1;
		do
		:: i > 0 && VIEW(i) >= lock[H - NEED] ->
			if
			:: CERTIFIED(i) ->
				walk(i, p);
				if
				:: at != p -> break
				:: else
				fi
			:: else
			fi;
			i--
		:: else -> i = 0; break
		od;
		if
		:: i == 0 -> break
		:: else
		fi
	:: else -> break
	od;
	b = 1;
	do
	:: b < SLOT(turn) ->
		i = SLOT(turn) - 1;	/* will be 0 unless a block that may have children extends b */
		do
		:: i > 0 && VIEW(i) >= lock[H - NEED] ->
			at = 0;
			if
			:: CERTIFIED(i) -> walk(i, b)
			:: else
			fi;
			if
			:: at == b -> break
			:: else
			fi;
			i--
		:: else -> i = 0; break
		od;
		if
		:: i == 0 || (p != 0 && b < p) -> votes[b] = 0; parent[b] = 0; final = final & ~(1 << b)
		:: b == p -> parent[b] = 0; final = final & ~(1 << b)
		:: else
		fi;
		b++
	:: else -> break
	od
}

/* Only the order of views counts, and which of the newest are consecutive: so gaps are closed, and the block that all
   have in common becomes genesis. With this V bounds how many certified blocks may be alive, not how many views pass. */
inline renumber() {
	other = VIEW(p);	/* the view that was placed last, as it was */
	length = 0;		/* and as it is now */
	place(p, 0);
	head = VIEW(p) + 1;
	do
	:: head < turn ->
		if
		:: CERTIFIED(SLOT(head)) ->
			length = ((head == turn - 1 && other + 1 != head) -> length + 2 : length + 1);
			place(SLOT(head), SLOT(length));
			other = head
		:: else
		fi;
		head++
	:: else -> break
	od;
	b = (other + 1 == turn -> length + 1 : length + 2);
	c = claim[NEED * (turn - 1)];
	i = 0;
	do
	:: i < NEED -> claim[NEED * (turn - 1) + i] = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NEED && b > 1 -> claim[NEED * (b - 1) + i] = c; i++
	:: else -> break
	od;
	turn = b;
	c = 0
}

inline place(old, new) {
	i = 0;
	do
	:: i < H ->
		if
		:: lock[i] == VIEW(old) -> lock[i] = VIEW(new)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NEED ->
		if
		:: claim[NEED * (turn - 1) + i] == VIEW(old) + 1 -> claim[NEED * (turn - 1) + i] = VIEW(new) + 1
		:: else
		fi;
		i++
	:: else -> break
	od;
	if
	:: old != new ->
		i = old + 1;
		do
		:: i < SLOT(turn) ->
			if
			:: parent[i] == old && CERTIFIED(i) -> parent[i] = new
			:: else
			fi;
			i++
		:: else -> break
		od;
		if
		:: new != 0 ->
			votes[new] = votes[old];
			parent[new] = parent[old];
			final = (((final >> old) & 1) -> final | (1 << new) : final)
		:: else
		fi;
		votes[old] = 0;
		parent[old] = 0;
		final = final & ~(1 << old)
	:: else
	fi
}

/* The steps of member r in view v; the parent is any block of a lower view. */
#define ON_1(r, v) FOUND(r, v, 0)
#define ON_2(r, v) ON_1(r, v) FOUND(r, v, 1) FOUND(r, v, 2)
#define ON_3(r, v) ON_2(r, v) FOUND(r, v, 3) FOUND(r, v, 4)
#define ON_4(r, v) ON_3(r, v) FOUND(r, v, 5) FOUND(r, v, 6)
#define ON_5(r, v) ON_4(r, v) FOUND(r, v, 7) FOUND(r, v, 8)
#define ON_6(r, v) ON_5(r, v) FOUND(r, v, 9) FOUND(r, v, 10)
#define ON_7(r, v) ON_6(r, v) FOUND(r, v, 11) FOUND(r, v, 12)
#define ON_8(r, v) ON_7(r, v) FOUND(r, v, 13) FOUND(r, v, 14)
#define ON_9(r, v) ON_8(r, v) FOUND(r, v, 15) FOUND(r, v, 16)
#define ON_10(r, v) ON_9(r, v) FOUND(r, v, 17) FOUND(r, v, 18)
#define ON_11(r, v) ON_10(r, v) FOUND(r, v, 19) FOUND(r, v, 20)
#define ON_12(r, v) ON_11(r, v) FOUND(r, v, 21) FOUND(r, v, 22)
#define JOIN_OR_GIVE_UP(r, v) JOIN(r, SLOT(v)) JOIN(r, SLOT(v) + 1) GIVE_UP(r, v)
#define IN(r, v) JOIN_OR_GIVE_UP(r, v) ON_ ## v(r, v)

#define UP_TO_1(r) IN(r, 1)
#define UP_TO_2(r) UP_TO_1(r) IN(r, 2)
#define UP_TO_3(r) UP_TO_2(r) IN(r, 3)
#define UP_TO_4(r) UP_TO_3(r) IN(r, 4)
#define UP_TO_5(r) UP_TO_4(r) IN(r, 5)
#define UP_TO_6(r) UP_TO_5(r) IN(r, 6)
#define UP_TO_7(r) UP_TO_6(r) IN(r, 7)
#define UP_TO_8(r) UP_TO_7(r) IN(r, 8)
#define UP_TO_9(r) UP_TO_8(r) IN(r, 9)
#define UP_TO_10(r) UP_TO_9(r) IN(r, 10)
#define UP_TO_11(r) UP_TO_10(r) IN(r, 11)
#define UP_TO_12(r) UP_TO_11(r) IN(r, 12)

#define JOINED_(a, z) a ## z
#define JOINED(a, z) JOINED_(a, z)
#ifdef ORDERED
#define STEPS_OF(r) JOIN_OR_GIVE_UP(r, turn) JOINED(ON_, V)(r, turn)
#else
#define STEPS_OF(r) JOINED(UP_TO_, V)(r)
#endif

active proctype everybody() {
	d_step {
		votes[0] = ALL;
		turn = 1;
		v = 1;
		do
		:: v <= V ->
			i = H;
			do
			:: i < N -> printf("timeout r=%d view=%d qc=0\n", i, v); i++
			:: else -> break
			od;
			v++
		:: else -> break
		od;
		v = 0; i = 0
	}
end:	do
	:: atomic {
		if
		STEPS_OF(0)
		STEPS_OF(1)
#if H == 3
		STEPS_OF(2)
#endif
#ifdef ORDERED
		:: !violated && turn < V -> d_step { next_view() }; goto end
#endif
		fi;
		d_step {
			if
			:: c == 0 -> sign_vote()
			:: else -> sign_timeout()
			fi;
			settle()
		}
	}
	:: violated -> printf("end violated=%d\n", violated); assert(false)
	od
}
#endif
