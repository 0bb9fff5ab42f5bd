----------------------------- MODULE WorkLimit -----------------------------
(* Work items that need slots of one limit or of two, several workers, one database. An item  *)
(* waits at its gate until an admission takes all its slots. It holds them until its row is   *)
(* removed (its result, a cancellation), or until it is put back at its gate: by its worker,  *)
(* or by a sweep once its lock has expired. Each limit counts its slots in use. A transaction *)
(* that removes an item, or puts one back, leaves a mark; the next admission subtracts it.    *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Items, Workers, Admitters, Slots, MaxToken,
          OneAdmission,   \* TRUE: an admission excludes other admissions from its reading to its writing
          TakeTogether,   \* TRUE: an admission takes all slots of an item, or none
          MarkInside,     \* TRUE: slots are marked as free in the transaction that frees them
          CheckToken      \* TRUE: a worker that has lost an item's lock cannot remove the item
Limits == {"a", "b"}
Needs(i) == IF i = 1 THEN {"a"} ELSE Limits
Most == [l \in Limits |-> IF l = "a" THEN Slots ELSE 1]
Unread == [l \in Limits |-> 99]
VARIABLES place, token, taken,  \* items: where each is, its live token (0: none), how often it was fetched
          held,                 \* the slots that each item holds
          running, runToken, excused, \* each worker's run (0: none); the workers that run without a lease
          used, freed, owed,    \* of each limit: slots counted as in use; marks; marks not written yet
          seen,                 \* what each admission under way has read
          bound, lowered,       \* of each limit; an operator lowers it once, also to 0, and raises it again
          exceeded              \* an admission went above a bound
items == <<place, token, taken>>
runs == <<running, runToken, excused>>
counts == <<used, freed, owed>>
operator == <<bound, lowered>>
vars == <<items, held, runs, counts, seen, operator, exceeded>>
InUse(l) == Cardinality({i \in Items : l \in held[i]})
None == [l \in Limits |-> 0]
Plus(x, y) == [l \in Limits |-> x[l] + y[l]]
Init == /\ place = [i \in Items |-> "gate"] /\ token = [i \in Items |-> 0] /\ taken = [i \in Items |-> 0]
        /\ held = [i \in Items |-> {}]
        /\ running = [w \in Workers |-> 0] /\ runToken = [w \in Workers |-> 0] /\ excused = {}
        /\ used = None /\ freed = None /\ owed = None /\ seen = [a \in Admitters |-> Unread]
        /\ bound = Most /\ lowered = {} /\ exceeded = FALSE
\* an admission counts the marks, and reads what is in use
Look(a) == /\ seen[a] = Unread /\ (OneAdmission => \A other \in Admitters : seen[other] = Unread)
           /\ LET now == [l \in Limits |-> used[l] - freed[l]]
              IN seen' = [seen EXCEPT ![a] = now] /\ used' = now
           /\ freed' = None
           /\ UNCHANGED <<items, held, runs, owed, operator, exceeded>>
Has(a, l) == seen[a][l] < bound[l]
Take(a, i, slots) == /\ held' = [held EXCEPT ![i] = @ \union slots]
                     /\ used' = [l \in Limits |-> IF l \in slots THEN used[l] + 1 ELSE used[l]]
                     /\ place' = [place EXCEPT ![i] = IF held[i] \union slots = Needs(i) THEN "free" ELSE "gate"]
                     /\ exceeded' = (exceeded \/ \E l \in slots : InUse(l) >= bound[l])
                     /\ seen' = [seen EXCEPT ![a] = Unread]
                     /\ UNCHANGED <<token, taken, runs, freed, owed, operator>>
Admit(a) == /\ seen[a] # Unread
            /\ \E i \in Items : /\ place[i] = "gate"
                                /\ IF TakeTogether THEN /\ \A l \in Needs(i) : Has(a, l)
                                                        /\ Take(a, i, Needs(i))
                                   ELSE \E l \in Needs(i) \ held[i] : Has(a, l) /\ Take(a, i, {l})
\* nothing has room, or the process crashes: its transaction ends without a trace
EndAdmission(a) == /\ seen[a] # Unread /\ seen' = [seen EXCEPT ![a] = Unread]
                   /\ UNCHANGED <<items, held, runs, counts, operator, exceeded>>
Fetch(w, i) == /\ running[w] = 0 /\ place[i] = "free" /\ taken[i] < MaxToken
               /\ place' = [place EXCEPT ![i] = "locked"] /\ taken' = [taken EXCEPT ![i] = @ + 1]
               /\ token' = [token EXCEPT ![i] = taken[i] + 1]
               /\ running' = [running EXCEPT ![w] = i] /\ runToken' = [runToken EXCEPT ![w] = taken[i] + 1]
               /\ excused' = excused \ {w}
               /\ UNCHANGED <<held, counts, seen, operator, exceeded>>
Lost(i) == {w \in Workers : running[w] = i}
Marks(i) == [l \in Limits |-> IF l \in held[i] THEN 1 ELSE 0]
\* the slots of an item are free from here on
Free(i, to) == /\ held' = [held EXCEPT ![i] = {}] /\ place' = [place EXCEPT ![i] = to]
               /\ token' = [token EXCEPT ![i] = 0]
               /\ IF MarkInside THEN freed' = Plus(freed, Marks(i)) /\ owed' = owed
                                ELSE owed' = Plus(owed, Marks(i)) /\ freed' = freed
               /\ UNCHANGED <<taken, used, seen, operator, exceeded>>
IsOwner(w) == running[w] # 0 /\ token[running[w]] = runToken[w]
Finish(w) == /\ running[w] # 0 /\ place[running[w]] # "gone" /\ (CheckToken => IsOwner(w))
             /\ Free(running[w], "gone")
             /\ running' = [running EXCEPT ![w] = 0] /\ UNCHANGED <<runToken, excused>>
GiveBack(w) == /\ IsOwner(w) /\ taken[running[w]] < MaxToken
               /\ Free(running[w], "gate")
               /\ running' = [running EXCEPT ![w] = 0] /\ UNCHANGED <<runToken, excused>>
\* a worker that has no lease runs on for a moment, and finds it out
Stop(w) == /\ running[w] # 0 /\ ~IsOwner(w) /\ running' = [running EXCEPT ![w] = 0]
           /\ UNCHANGED <<items, held, runToken, excused, counts, seen, operator, exceeded>>
\* a lock expires: by a crash, a pause, or a network that is gone
Expire(i) == /\ place[i] = "locked" /\ taken[i] < MaxToken
             /\ place' = [place EXCEPT ![i] = "expired"] /\ excused' = excused \union Lost(i)
             /\ UNCHANGED <<token, taken, held, running, runToken, counts, seen, operator, exceeded>>
\* the sweep: items whose lock has expired, and those that no worker fetches
Return(i) == /\ place[i] \in {"expired", "free"} /\ Free(i, "gate") /\ UNCHANGED runs
\* what runs is told later
Cancel(i) == /\ place[i] # "gone" /\ excused' = excused \union Lost(i) /\ Free(i, "gone")
             /\ UNCHANGED <<running, runToken>>
Lower(l) == /\ l \notin lowered /\ lowered' = lowered \union {l}
            /\ \E n \in 0..(Most[l] - 1) : bound' = [bound EXCEPT ![l] = n]
            /\ UNCHANGED <<items, held, runs, counts, seen, exceeded>>
Raise(l) == /\ bound[l] < Most[l] /\ bound' = [bound EXCEPT ![l] = Most[l]]
            /\ UNCHANGED <<items, held, runs, counts, seen, lowered, exceeded>>
\* of marks that are written by themselves
Write == /\ owed # None /\ freed' = Plus(freed, owed) /\ owed' = None
         /\ UNCHANGED <<items, held, runs, used, seen, operator, exceeded>>
Lose == /\ owed # None /\ owed' = None
        /\ UNCHANGED <<items, held, runs, used, freed, seen, operator, exceeded>>
Next == \/ Write \/ Lose
        \/ \E a \in Admitters : Look(a) \/ Admit(a) \/ EndAdmission(a)
        \/ \E w \in Workers : Finish(w) \/ GiveBack(w) \/ Stop(w) \/ \E i \in Items : Fetch(w, i)
        \/ \E i \in Items : Expire(i) \/ Return(i) \/ Cancel(i)
        \/ \E l \in Limits : Lower(l) \/ Raise(l)
Fair == /\ WF_vars(Write)
        /\ \A a \in Admitters : WF_vars(Look(a)) /\ SF_vars(Admit(a)) /\ WF_vars(EndAdmission(a))
        /\ \A w \in Workers : WF_vars(Finish(w)) /\ WF_vars(Stop(w)) /\ \A i \in Items : SF_vars(Fetch(w, i))
        /\ \A i \in Items : WF_vars(place[i] = "expired" /\ Return(i))
        /\ \A l \in Limits : WF_vars(Raise(l))
Spec == Init /\ [][Next]_vars /\ Fair
Symmetric == Permutations(Workers) \union Permutations(Admitters)
\* no admission goes above a bound
Bounded == ~exceeded
\* what runs with a lease is within the bounds
RunsBounded == \A l \in Limits :
    Cardinality({w \in Workers \ excused : running[w] # 0 /\ l \in Needs(running[w])}) <= Most[l]
\* an item that a worker may fetch, or has, holds all its slots; one at its gate holds none
AllOrNone == \A i \in Items : held[i] = IF place[i] \in {"gate", "gone"} THEN {} ELSE Needs(i)
\* each slot that is counted is held by an item, or marked: none is lost, and none is free twice
SlotsCounted == \A l \in Limits : used[l] = InUse(l) + freed[l]
\* all work ends, so that each slot that is taken is free again, and no items wait for one another
AllEnd == <>(\A i \in Items : place[i] = "gone")
=============================================================================
