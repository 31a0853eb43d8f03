"""Messages that answer an unknown name."""

from multigate.configs.sections.nearest import did_you_mean, listed, nearest


def test_the_nearest_name_is_found_whatever_its_case():
    assert nearest("UserID", ["item_id", "userid", "time"]) == "userid"
    assert nearest("eventtype", ["eventType"]) == "eventType"
    assert nearest("price", ["user", "item"]) is None
    assert did_you_mean("timestmp", ["timestamp"]) == "did you mean 'timestamp'? "
    assert did_you_mean("price", ["user"]) == ""


def test_a_long_list_says_how_many_names_it_leaves_out():
    names = [f"c{at}" for at in range(60)]
    assert listed(names).endswith("c38, c39 and 20 more")
    assert listed(names[:40]).endswith("c38, c39")
