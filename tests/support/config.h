/* Shared by the tests of configurations: a config.json with some members changed, and what it is read as. */
#ifndef ASSAY_TEST_CONFIG_SUPPORT_H
#define ASSAY_TEST_CONFIG_SUPPORT_H

#include "core/model/config.h"
#include <criterion/criterion.h>
#include <string.h>

/* `base` with the members of `change` put over it; a member "-" of strings lists what to remove. */
static inline json_t *config_edited(const char *base, const char *change)
{
    json_t *root = json_loads(base, 0, NULL), *over = json_loads(change, 0, NULL);
    cr_assert(root != NULL && over != NULL, "%s", change);
    const json_t *removed = json_object_get(over, "-");
    for (size_t i = 0; i < json_array_size(removed); i++)
        json_object_del(root, json_string_value(json_array_get(removed, i)));
    json_object_del(over, "-");
    json_object_update(root, over);
    json_decref(over);
    return root;
}

/* Every byte of the result is set before it is read: what no reader writes would show. */
static inline assay_model_config config_read(const char *base, const char *change)
{
    assay_model_config c;
    memset(&c, 0xff, sizeof c);
    json_t *root = config_edited(base, change);
    const assay_status st = assay_config_from_json(root, "config.json", &c);
    cr_expect(st == ASSAY_OK, "%s: %s", change, assay_error_message());
    json_decref(root);
    return c;
}

#endif
